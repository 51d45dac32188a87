//! The one test binary. A file for each behaviour; tests named `process_…` start the program itself as a process.
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "helpers of tests may fail loudly, and say why they skip"
)]

mod support;

mod batches;
mod batches_cli;
mod cache;
mod cancel;
mod chaos;
mod checkpoints;
mod child;
mod claim;
mod claims;
mod cli;
mod componentize;
mod dev;
mod dev_host;
mod dev_watch;
mod docs;
mod doors;
mod enqueue;
mod examples;
mod fence;
mod field_data;
mod field_flat;
mod field_folder;
mod field_retry;
mod field_roles;
mod field_size;
mod fleet;
mod fleet_canary;
mod fleet_cli;
mod fleet_plugins;
mod fleet_rule;
mod fleet_runners;
mod groups;
mod hostile;
mod http;
mod http_connections;
mod http_requests;
mod invoke;
mod keys;
mod languages;
mod large;
mod layers;
mod lease;
mod limits;
mod link;
mod migrations;
mod new;
mod ordering;
mod plugins_check;
mod plugins_fleet;
mod plugins_folder;
mod policy;
mod queue;
mod recovery;
mod retention;
mod runner_toml;
mod runs;
mod schedule_fleet;
mod schedules;
mod schedules_cli;
mod schedules_settings;
mod secrets;
mod settings;
mod spinners;
mod sql;
mod status;
mod stop;
mod swaps;
mod ticks;
mod tidy;
mod trust;
mod unique;
mod worlds;
