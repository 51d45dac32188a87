//! `piecework new`: a project for a handler.

use std::path::Path;

use clap::{Args, ValueEnum};

use super::{Ending, Misuse, print};
use crate::scaffold::{self, Language};

/// Lay out a project for a handler: a folder that builds, tests and runs as it is
#[derive(Debug, Args)]
pub(super) struct New {
    /// The handler's name, such as send-mail: the folder, the plugin and its job type
    name: String,
    /// The language
    #[arg(long, value_enum, value_name = "LANGUAGE")]
    lang: Lang,
}

/// A [`Language`], as an argument.
#[derive(Clone, Copy, Debug)]
struct Lang(Language);

impl ValueEnum for Lang {
    fn value_variants<'a>() -> &'a [Self] {
        const ALL: [Lang; 7] = {
            let mut all = [Lang(Language::Rust); 7];
            let mut at = 0;
            while at < 7 {
                all[at] = Lang(Language::ALL[at]);
                at += 1;
            }
            all
        };
        &ALL
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        let short: &[&str] = match self.0 {
            Language::Rust => &["rs"],
            Language::Typescript => &["ts"],
            Language::Javascript => &["js"],
            Language::Python => &["py"],
            Language::Go => &["golang"],
            Language::C | Language::Zig => &[],
        };
        let value = clap::builder::PossibleValue::new(self.0.as_str());
        Some(value.aliases(short.iter().copied()))
    }
}

impl New {
    pub(super) fn run(&self) -> anyhow::Result<Ending> {
        let name = &self.name;
        scaffold::create(Path::new(""), name, self.lang.0)
            .map_err(|error| Misuse(error.to_string()))?;
        print::line(&format!(
            "{name}/ is ready. Next:\n\n  cd {name}\n  ./build.sh      # builds plugins/{name}.wasm\n  ./test.sh       # tries it with recorded answers\n  piecework dev   # runs it: README.md has the first job\n"
        ))?;
        Ok(Ending::Done)
    }
}
