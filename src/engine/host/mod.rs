//! What an attempt can reach: its host state, which lives and dies with its store. One file for each interface of the world.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use wasmtime::ResourceLimiter;
use wasmtime::component::ResourceTable;
use wasmtime_wasi::{WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView};
use wasmtime_wasi_http::WasiHttpCtx;

mod checkpoint;
mod config;
mod http;
mod jobs;
mod log;
mod output;

pub(super) use output::Capture;

use super::{Grants, Ledger, Progress, Shared, Stop, Ties};
use crate::config::Limits;
use crate::engine::worlds::v0_1::piecework::handler::types;
use crate::job::{Claimed, FollowUp, JobId};

/// What the headers that a guest makes through `wasi:http` may take up together, in bytes of host memory: each set of them
/// is a handle, and has its share. (9,000 sets of 60 KB were 562 MiB.)
const WASI_HTTP_BYTES: usize = 16 * 1024 * 1024;
/// The least share, in bytes; a header counts with some 70 bytes more than its text.
const MIN_FIELDS_BYTES: usize = 4 * 1024;

/// The state of one attempt.
pub(super) struct HostState {
    wasi: WasiCtx,
    wasi_http: WasiHttpCtx,
    table: ResourceTable,
    limits: Limits,
    pub(super) memory: MemoryLimit,
    pub(super) follow_ups: Vec<FollowUp>,
    follow_up_bytes: usize,
    pub(super) output: Shared<Capture>,
    pub(super) http: http::Door,
    config: Arc<BTreeMap<String, String>>,
    saved: checkpoint::Saved,
    saves: u32,
    ledger: Arc<dyn Ledger>,
    stop: Arc<Stop>,
    progress: Arc<Progress>,
    job: JobId,
    root: JobId,
    job_type: Arc<str>,
}

impl HostState {
    pub(super) fn new(
        job: &Claimed,
        idempotency_key: &str,
        grants: &Grants,
        ties: &Ties,
        deadline: Instant,
        reserve: Arc<Reserve>,
    ) -> Self {
        let limits = grants.limits;
        let output = Arc::new(Mutex::new(Capture::new(limits.output)));
        let mut wasi = WasiCtxBuilder::new();
        // No arguments, environment, files or network; standard input is at its end. What is printed is kept.
        wasi.stdout(output::Printer::new(output.clone(), false));
        wasi.stderr(output::Printer::new(output.clone(), true));
        wasi.max_random_size(limits.random);
        let mut table = ResourceTable::new();
        table.set_max_capacity(limits.handles);
        let mut wasi_http = WasiHttpCtx::new();
        wasi_http.set_field_size_limit((WASI_HTTP_BYTES / limits.handles).max(MIN_FIELDS_BYTES));
        let http = http::Door::new(
            grants.http.clone(),
            deadline,
            idempotency_key,
            output.clone(),
        );
        Self {
            wasi: wasi.build(),
            wasi_http,
            table,
            limits,
            memory: MemoryLimit::new(&limits, reserve),
            follow_ups: Vec::new(),
            follow_up_bytes: 0,
            output,
            http,
            config: grants.config.clone(),
            saved: checkpoint::Saved::Unread(job.checkpoint.clone()),
            saves: 0,
            ledger: ties.ledger.clone(),
            stop: ties.stop.clone(),
            progress: ties.progress.clone(),
            job: job.id,
            root: job.root,
            job_type: job.job_type.shared(),
        }
    }

    /// Ends this attempt.
    pub(super) fn stop(&self) -> &Stop {
        &self.stop
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

/// The linear memory of all attempts of a process.
#[derive(Debug)]
pub(in crate::engine) struct Reserve {
    limit: u64,
    used: AtomicU64,
}

impl Reserve {
    /// `limit` bytes; 0 for no limit.
    pub(in crate::engine) fn new(limit: u64) -> Self {
        Self {
            limit: if limit == 0 { u64::MAX } else { limit },
            used: AtomicU64::new(0),
        }
    }

    fn take(&self, bytes: u64) -> bool {
        let taken = self.used.fetch_add(bytes, Ordering::Relaxed);
        let fits = taken.saturating_add(bytes) <= self.limit;
        if !fits {
            self.give(bytes);
        }
        fits
    }

    fn give(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Counts the linear memories of a component together, and remembers that it said no: a guest that is out of memory traps
/// as if by accident.
#[derive(Debug)]
pub(super) struct MemoryLimit {
    limit: u64,
    table_elements: usize,
    instances: usize,
    total: u64,
    reserve: Arc<Reserve>,
    pub(super) peak: u64,
    pub(super) denied: Option<String>,
    /// It was not the attempt's own limit.
    pub(super) reserve_empty: bool,
    pub(super) denied_table: Option<String>,
}

impl MemoryLimit {
    fn new(limits: &Limits, reserve: Arc<Reserve>) -> Self {
        Self {
            limit: limits.memory,
            table_elements: limits.table_elements,
            instances: limits.instances,
            total: 0,
            reserve,
            peak: 0,
            denied: None,
            reserve_empty: false,
            denied_table: None,
        }
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        self.reserve.give(self.total);
    }
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
        if !self.reserve.take(total.saturating_sub(self.total)) {
            self.reserve_empty = true;
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
        if desired > self.table_elements {
            self.denied_table = Some(format!(
                "the guest asked for a table of {desired} elements, the limit is {}",
                self.table_elements
            ));
            return Ok(false);
        }
        Ok(maximum.is_none_or(|maximum| desired <= maximum))
    }

    fn instances(&self) -> usize {
        self.instances
    }

    fn tables(&self) -> usize {
        super::MAX_TABLES
    }

    fn memories(&self) -> usize {
        super::MAX_MEMORIES
    }
}
