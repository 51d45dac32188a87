//! The one test binary. A file for each behaviour; tests named `process_…` start the program itself as a process.
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "helpers of tests may fail loudly, and say why they skip"
)]

mod support;

mod chaos;
mod claim;
mod claims;
mod cli;
mod dev;
mod dev_host;
mod enqueue;
mod fence;
mod keys;
mod layers;
mod lease;
mod limits;
mod link;
mod migrations;
mod plugins_folder;
mod recovery;
mod runner_toml;
mod runs;
mod sql;
mod stop;
mod tidy;
