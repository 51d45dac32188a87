//! Settings in three layers: what holds for every plugin (`[defaults]`), what one plugin says for itself
//! (`[plugins.NAME]`), and what no plugin may exceed (`[ceiling]`). Each key stands here once, with its default, its
//! ceiling and what it means.

use serde::{Deserialize, Serialize};

use super::{Pins, Size, Span};
use crate::policy::{Policy, Rule, Target};

/// Makes the structs of the three layers from one list of keys. The first part has keys with a ceiling, the second keys
/// without one, the third sections inside, which are layered themselves.
macro_rules! layers {
    (
        $(#[$about_all:meta])* $all:ident;
        $(#[$about_own:meta])* $own:ident { $( $(#[$about_only:meta])* $only:ident: $only_kind:ty; )* }
        $(#[$about_most:meta])* $most:ident { $( $(#[doc = $top_text:literal])* $top_key:ident: $top_kind:ty = $top_usual:expr; )* }
        limits { $( $(#[doc = $text:literal])* $key:ident: $kind:ty = $usual:expr, at most $top:expr; )* }
        rest { $( $(#[doc = $rest_text:literal])* $rest:ident: $rest_kind:ty = $rest_usual:expr; )* }
        sections { $( $(#[doc = $section_text:literal])* $section:ident: $section_all:ty, $section_own:ty, $section_most:ty; )* }
    ) => {
        $(#[$about_all])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $all {
            $( $(#[doc = $text])* pub $key: $kind, )*
            $( $(#[doc = $rest_text])* pub $rest: $rest_kind, )*
            $( $(#[doc = $section_text])* pub $section: $section_all, )*
        }

        impl Default for $all {
            fn default() -> Self {
                Self {
                    $( $key: $usual, )*
                    $( $rest: $rest_usual, )*
                    $( $section: <$section_all>::default(), )*
                }
            }
        }

        $(#[$about_own])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $own {
            $( $(#[$about_only])* pub $only: $only_kind, )*
            $( $(#[doc = $text])* #[serde(skip_serializing_if = "Option::is_none")] pub $key: Option<$kind>, )*
            $( $(#[doc = $rest_text])* #[serde(skip_serializing_if = "Option::is_none")] pub $rest: Option<$rest_kind>, )*
            $( $(#[doc = $section_text])* pub $section: $section_own, )*
        }

        $(#[$about_most])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $most {
            $( $(#[doc = $top_text])* pub $top_key: $top_kind, )*
            $( $(#[doc = $text])* pub $key: $kind, )*
            $( $(#[doc = $section_text])* pub $section: $section_most, )*
        }

        impl Default for $most {
            fn default() -> Self {
                Self {
                    $( $top_key: $top_usual, )*
                    $( $key: $top, )*
                    $( $section: <$section_most>::default(), )*
                }
            }
        }

        impl $all {
            /// These settings with a plugin's own ones over them.
            pub(super) fn under(&self, own: &$own) -> Self {
                Self {
                    $( $key: own.$key.unwrap_or(self.$key), )*
                    $( $rest: own.$rest.clone().unwrap_or_else(|| self.$rest.clone()), )*
                    $( $section: self.$section.under(&own.$section), )*
                }
            }

            /// The first key that is above its ceiling, with both values as text.
            pub(super) fn above(&self, most: &$most) -> Option<(String, String, String)> {
                $( if self.$key > most.$key {
                    return Some((stringify!($key).to_owned(), shown(&self.$key), shown(&most.$key)));
                } )*
                $( if let Some((key, value, top)) = self.$section.above(&most.$section) {
                    return Some((format!("{}.{key}", stringify!($section)), value, top));
                } )*
                None
            }
        }
    };
}

layers! {
    /// `[defaults]`: what holds for every plugin that does not say otherwise.
    PluginDefaults;
    /// `[plugins.NAME]`: what is given here wins over `[defaults]`.
    PluginSettings {
        /// The job types that the plugin serves; its name when not given.
        #[serde(skip_serializing_if = "Option::is_none")]
        job_types: Option<Vec<String>>;
        /// The secrets that are granted to the plugin, by the names of their sections.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        secrets: Vec<String>;
        /// The components that may serve as this plugin; any when not given.
        #[serde(skip_serializing_if = "Option::is_none")]
        sha256: Option<Pins>;
        /// What the plugin reads from `wasi:config/store`.
        #[serde(skip_serializing_if = "std::collections::BTreeMap::is_empty")]
        config: std::collections::BTreeMap<String, String>;
    }
    /// `[ceiling]`: no plugin gets more than this.
    Ceiling {}
    limits {
        /// Wall-clock limit of an attempt: computing, sleeping and host calls together.
        timeout: Span = Span::secs(30), at most Span::secs(86_400);
        /// Computing time of an attempt, by the clock of its thread; 0 for as long as the wall-clock limit.
        cpu: Span = Span::secs(0), at most Span::secs(86_400);
        /// Linear memory of an attempt, summed over all memories of the component.
        memory: Size = Size::mib(64), at most Size::mib(1024);
        /// Elements of one table.
        table_elements: u32 = 20_000, at most 20_000;
        /// Core instances of an attempt.
        instances: u32 = 64, at most 64;
        /// What crosses between guest and host in one call, in its form in host memory.
        host_call: Size = Size::mib(16), at most Size::mib(256);
        /// Handles that a guest holds at once, and entries in the host's table behind them.
        handles: u32 = 1000, at most 10_000;
        /// Random bytes in one call.
        random: Size = Size::kib(64), at most Size::mib(1);
        /// The result, JSON text.
        result: Size = Size::mib(1), at most Size::mib(16);
        /// The text of an error; what is longer is cut and marked.
        error_text: Size = Size::kib(16), at most Size::kib(256);
        /// A progress message; what is longer is cut and marked.
        progress: Size = Size::kib(4), at most Size::kib(64);
        /// All checkpoints of a job together, JSON text and names.
        checkpoint: Size = Size::kib(256), at most Size::mib(16);
        /// How often an attempt may save a checkpoint.
        checkpoint_saves: u32 = 1000, at most 100_000;
        /// What is kept of the printed and logged output: its first and last part.
        output: Size = Size::kib(64), at most Size::mib(4);
        /// Jobs that an attempt may enqueue.
        follow_ups: u32 = 10_000, at most 100_000;
    }
    rest {
        /// Fuel of an attempt, a repeatable work budget; 0 for none. It has its price: code up to 1.9 times slower.
        fuel: u64 = 0;
        /// Most jobs of a job type that run at once in this process; 0 for no limit but the slots.
        concurrency: u32 = 0;
        /// Most jobs of a job type that run at once over all runners; 0 for no limit.
        fleet_concurrency: u32 = 0;
        /// Most jobs with the same group key that run at once over all runners; 0 for no limit.
        group_concurrency: u32 = 0;
        /// Most jobs of a job type that start in any `starts_per` over all runners; 0 for no limit.
        starts: u32 = 0;
        /// The same for the jobs with one group key.
        group_starts: u32 = 0;
        /// The interval of `starts` and `group_starts`.
        starts_per: Span = Span::secs(1);
        /// Delay after the first failed attempt.
        retry_base: Span = Span::secs(5);
        /// What each further attempt multiplies the delay by.
        retry_factor: f64 = 2.0;
        /// Longest delay.
        retry_max: Span = Span::secs(3600);
        /// Share of the delay that is added at random, 0 to 1.
        retry_jitter: f64 = 0.2;
    }
    sections {
        /// The HTTP calls.
        http: HttpDefaults, HttpSettings, HttpCeiling;
    }
}

layers! {
    /// `[defaults.http]`: the HTTP calls of every plugin that does not say otherwise.
    HttpDefaults;
    /// `[plugins.NAME.http]`: what is given here wins over `[defaults.http]`.
    HttpSettings {}
    /// `[ceiling.http]`: no plugin calls elsewhere or gets more than this.
    HttpCeiling {
        /// Where plugins may call at all: a request must be covered here and by the plugin's own `allow`.
        allow: Policy = Policy(vec![everywhere()]);
    }
    limits {
        /// Calls in an attempt.
        calls: u32 = 100, at most 10_000;
        /// Calls that are open at once.
        concurrent: u32 = 8, at most 64;
        /// Bytes of the body of an answer, as received and as unpacked.
        response: Size = Size::mib(8), at most Size::mib(256);
        /// Bytes of the body of a request.
        request: Size = Size::mib(8), at most Size::mib(256);
        /// Bytes of all headers of a request or an answer.
        headers: Size = Size::kib(64), at most Size::mib(1);
        /// Longest wait for a connection: name lookup, TCP and TLS together.
        connect_timeout: Span = Span::secs(3), at most Span::secs(3600);
        /// Longest wait for the head of an answer.
        first_byte_timeout: Span = Span::secs(5), at most Span::secs(3600);
        /// Longest time for a call in all; never past the end of the attempt.
        timeout: Span = Span::secs(10), at most Span::secs(3600);
    }
    rest {
        /// Where requests may go.
        allow: Policy = Policy::default();
    }
    sections {}
}

/// What no ceiling forbids: every destination, private addresses too, as far as a plugin's own rule opens them.
fn everywhere() -> Rule {
    Rule {
        to: "*"
            .parse::<Target>()
            .expect("the pattern for everywhere is valid"),
        methods: None,
        private: true,
        idempotency_key: false,
    }
}

/// A value as it stands in the file.
fn shown<T: Serialize>(value: &T) -> String {
    toml::Value::try_from(value).map_or_else(|_| String::new(), |value| value.to_string())
}
