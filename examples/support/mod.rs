//! What both applications need to be played whole: a database, a fleet of runners that can be killed, an outside service that
//! misbehaves.

#![allow(dead_code, reason = "each application uses its part")]

pub(crate) mod fleet;
pub(crate) mod service;
pub(crate) mod stage;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Prints a claim with its verdict; returns the verdict.
pub(crate) fn claim(holds: bool, text: &str) -> bool {
    println!("{}  {text}", if holds { "ok    " } else { "NOT OK" });
    holds
}

/// 0 when all claims hold.
pub(crate) fn ending(claims: &[bool]) -> ExitCode {
    if claims.iter().all(|holds| *holds) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// The folder with what cargo built: `target/debug`, seen from `target/debug/examples/NAME`.
fn built() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe()?;
    program
        .ancestors()
        .nth(2)
        .map(Path::to_owned)
        .ok_or_else(|| anyhow::anyhow!("{} lies nowhere in a target folder", program.display()))
}

/// The plugins of an application, which `examples/build.sh` puts beside what cargo builds.
fn plugins(application: &str) -> anyhow::Result<PathBuf> {
    let folder = built()?.join("../examples-plugins").join(application);
    anyhow::ensure!(
        folder.exists(),
        "the handlers are not built: run examples/build.sh {application}"
    );
    Ok(folder)
}
