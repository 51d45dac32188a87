//! Piecework: a job runner on PostgreSQL whose handlers are WebAssembly components.
//!
//! Modules by rank; an import looks only down, and peers of a rank never meet (a test holds it):
//!
//! | rank | modules | what |
//! |---|---|---|
//! | 0 | [`job`], [`backoff`], [`policy`], [`schedule`] | the words of the domain; where HTTP may go; when schedules tick; all pure |
//! | 0 | [`componentize`], [`scaffold`] | core modules to components; new projects for handlers; both pure but for the files they are asked to write |
//! | 1 | [`config`] | `runner.toml` |
//! | 2 | [`telemetry`] | log, events, counters |
//! | 2 | [`trust`] | which components may serve |
//! | 2 | [`http`] | the one client through which handlers reach the world |
//! | 3 | [`store`] | everything that speaks SQL |
//! | 3 | [`engine`] | everything that speaks Wasm |
//! | 4 | [`plugins`] | which component serves which job type |
//! | 5 | [`runner`], [`dev`] | claims, runs, confirms; the private PostgreSQL |
//! | 7 | [`cli`] | the commands |
//!
//! `store` and `engine` cannot see each other, so no transaction can be open while a guest runs.

pub mod backoff;
pub mod cli;
pub mod componentize;
pub mod config;
pub mod dev;
pub mod engine;
pub mod http;
pub mod job;
pub mod plugins;
pub mod policy;
pub mod runner;
pub mod scaffold;
pub mod schedule;
pub mod store;
pub mod telemetry;
pub mod trust;
