//! What an attempt can reach: its host state, which lives and dies with its store. One file for each interface of the world.

use std::sync::{Arc, Mutex};

use wasmtime::ResourceLimiter;
use wasmtime::component::ResourceTable;
use wasmtime_wasi::{WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView};

mod jobs;
mod log;
mod output;

pub(super) use output::Capture;

use super::bindings::piecework::handler::types;
use super::{Progress, Shared, Stop};
use crate::job::{FollowUp, JobId};

/// Follow-ups of one attempt; the sum of their payloads is limited too.
const MAX_FOLLOW_UPS: usize = 10_000;

/// The state of one attempt.
pub(super) struct HostState {
    wasi: WasiCtx,
    table: ResourceTable,
    pub(super) memory: MemoryLimit,
    pub(super) follow_ups: Vec<FollowUp>,
    follow_up_bytes: usize,
    pub(super) output: Shared<Capture>,
    pub(super) stop: Arc<Stop>,
    progress: Arc<Progress>,
    job: JobId,
    job_type: Arc<str>,
}

impl HostState {
    pub(super) fn new(
        job: JobId,
        job_type: &str,
        memory: u64,
        stop: Arc<Stop>,
        progress: Arc<Progress>,
    ) -> Self {
        let output = Arc::new(Mutex::new(Capture::default()));
        let mut wasi = WasiCtxBuilder::new();
        // No arguments, environment, files or network; standard input is at its end. What is printed is kept.
        wasi.stdout(output::Printer::new(output.clone(), false));
        wasi.stderr(output::Printer::new(output.clone(), true));
        wasi.max_random_size(64 * 1024);
        let mut table = ResourceTable::new();
        table.set_max_capacity(10_000);
        Self {
            wasi: wasi.build(),
            table,
            memory: MemoryLimit {
                limit: memory,
                total: 0,
                peak: 0,
                denied: None,
            },
            follow_ups: Vec::new(),
            follow_up_bytes: 0,
            output,
            stop,
            progress,
            job,
            job_type: job_type.into(),
        }
    }
}

impl WasiView for HostState {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView {
            ctx: &mut self.wasi,
            table: &mut self.table,
        }
    }
}

impl types::Host for HostState {}

/// Counts the linear memories of a component together, and remembers that it said no: a guest that is out of memory traps
/// as if by accident.
#[derive(Debug)]
pub(super) struct MemoryLimit {
    limit: u64,
    total: u64,
    pub(super) peak: u64,
    pub(super) denied: Option<String>,
}

impl ResourceLimiter for MemoryLimit {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let total = self
            .total
            .saturating_sub(current as u64)
            .saturating_add(desired as u64);
        if total > self.limit {
            self.denied = Some(format!(
                "the guest asked for {total} bytes of memory, the limit is {}",
                self.limit
            ));
            return Ok(false);
        }
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false);
        }
        self.total = total;
        self.peak = self.peak.max(total);
        Ok(true)
    }

    fn table_growing(
        &mut self,
        _current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        Ok(desired <= 20_000 && maximum.is_none_or(|maximum| desired <= maximum))
    }

    fn instances(&self) -> usize {
        64
    }

    fn tables(&self) -> usize {
        64
    }

    fn memories(&self) -> usize {
        16
    }
}
