//! `piecework componentize`: a core module to a component.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;

use super::{Ending, Misuse, print};
use crate::componentize::componentize;

/// Make a component of a core module that exports `run` and `cabi_realloc`, for languages without a tool of their own for it
#[derive(Debug, Args)]
pub(super) struct Componentize {
    /// The core module, .wasm
    module: PathBuf,
    /// The component to write
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
}

impl Componentize {
    pub(super) fn run(&self) -> anyhow::Result<Ending> {
        let module = std::fs::read(&self.module)
            .map_err(|error| Misuse(format!("cannot read `{}`: {error}", self.module.display())))?;
        let component = componentize(&module)
            .with_context(|| format!("`{}` is refused", self.module.display()))?;
        write_whole(&self.output, &component)?;
        print::line(&format!(
            "{} ({} bytes)",
            self.output.display(),
            component.len()
        ))?;
        Ok(Ending::Done)
    }
}

/// Writes a file so that nobody ever sees half of it: a host may be watching its folder.
pub(super) fn write_whole(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}.tmp", std::process::id()));
    let beside = PathBuf::from(beside);
    std::fs::write(&beside, content)
        .and_then(|()| std::fs::rename(&beside, path))
        .map_err(|error| {
            let _ = std::fs::remove_file(&beside);
            Misuse(format!("cannot write `{}`: {error}", path.display())).into()
        })
}
