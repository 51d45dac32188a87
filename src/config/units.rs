//! Durations and sizes as people write them in `runner.toml`: `"30s"`, `"64MiB"`.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A duration: `"30s"`, `"500ms"`, `"2h 30m"`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

impl Span {
    /// Whole seconds.
    pub const fn secs(secs: u64) -> Self {
        Self(Duration::from_secs(secs))
    }

    /// Whole milliseconds.
    pub const fn millis(millis: u64) -> Self {
        Self(Duration::from_millis(millis))
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&humantime::format_duration(self.0))
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = text(deserializer, "a duration such as \"30s\"")?;
        let span = humantime::parse_duration(&text).map_err(|error| {
            de::Error::custom(format!(
                "`{text}` is not a duration such as \"30s\" or \"2h 30m\": {error}"
            ))
        })?;
        // Nothing here means more, and sums of these never overflow a clock.
        if span > Duration::from_secs(365 * 86_400) {
            return Err(de::Error::custom(format!("`{text}` is longer than a year")));
        }
        Ok(Self(span))
    }
}

/// A size in bytes: `"64MiB"`, `"10kB"`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl Size {
    /// Whole kibibytes.
    pub const fn kib(kib: u64) -> Self {
        Self(kib * 1024)
    }

    /// Whole mebibytes.
    pub const fn mib(mib: u64) -> Self {
        Self(mib * 1024 * 1024)
    }
}

impl fmt::Debug for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0)
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let units: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        match units
            .iter()
            .find(|(unit, _)| self.0 >= *unit && self.0.is_multiple_of(*unit))
        {
            Some((unit, name)) => serializer.collect_str(&format_args!("{}{name}", self.0 / unit)),
            None => serializer.collect_str(&format_args!("{}B", self.0)),
        }
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = text(deserializer, "a size such as \"64MiB\"")?;
        text.parse::<bytesize::ByteSize>()
            .map(|size| Self(size.as_u64()))
            .map_err(|error| {
                de::Error::custom(format!("`{text}` is not a size such as \"64MiB\": {error}"))
            })
    }
}

/// Reads text, and says what was expected where a bare number stands.
fn text<'de, D: Deserializer<'de>>(
    deserializer: D,
    expected: &'static str,
) -> Result<String, D::Error> {
    struct Text(&'static str);
    impl de::Visitor<'_> for Text {
        type Value = String;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<String, E> {
            Ok(text.to_owned())
        }
    }
    deserializer.deserialize_str(Text(expected))
}
