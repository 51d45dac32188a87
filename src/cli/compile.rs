//! `piecework compile-component`: for the program itself, see `engine/child.rs`.

use std::path::{Path, PathBuf};

use clap::Args;

use super::Ending;
use crate::config;
use crate::engine::compile_for_parent;

/// Compile one component from standard input; started by this program itself
#[derive(Debug, Args)]
pub(super) struct CompileComponent {
    /// The section `[engine]` of the settings, as JSON
    #[arg(long, value_parser = section)]
    engine: config::Engine,
    /// With code that counts fuel
    #[arg(long)]
    fuel: bool,
}

fn section(text: &str) -> Result<config::Engine, serde_json::Error> {
    serde_json::from_str(text)
}

impl CompileComponent {
    pub(super) fn run(self) -> anyhow::Result<Ending> {
        compile_for_parent(
            &self.engine,
            self.fuel,
            std::io::stdin(),
            std::io::stdout().lock(),
        )?;
        Ok(Ending::Done)
    }
}

/// This program, as it is even where its file has been replaced since: Linux keeps it under this name.
pub(super) fn own_program() -> Option<PathBuf> {
    let running = Path::new("/proc/self/exe");
    if running.exists() {
        return Some(running.to_owned());
    }
    std::env::current_exe().ok()
}
