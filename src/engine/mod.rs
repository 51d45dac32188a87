//! Everything that speaks Wasm, and nothing that speaks SQL. Takes bytes, makes [`Handler`]s; a handler makes one fresh
//! instance for each attempt and hands back what the attempt came to and what it wants done, as data.
//!
//! How an attempt is ended, wherever it is:
//!
//! ```text
//!   computing ── epoch callback, every tick ──┬─ yields to the other guests of its thread
//!                                             └─ sees the stop: ends with an error
//!   sleeping, waiting in a host call ─────────── the stop's token wakes the call, which is dropped
//!   the ticker (an OS thread) stops every call whose wall-clock limit passed; the runner stops calls for its own reasons
//! ```

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use anyhow::Context;
use wasmtime::component::Linker;
use wasmtime::{Config, Enabled, InstanceAllocationStrategy, PoolingAllocationConfig};

use crate::config;
use crate::http::Net;

mod cache;
mod call;
mod check;
mod child;
mod clock;
mod compile;
mod failure;
mod grants;
mod host;
mod refusal;
mod shape;
mod ticker;
mod turns;
mod worlds;

pub use child::compile_for_parent;
pub use compile::{Handler, digest};
pub use grants::{Grants, Ledger, NoLedger, Progress, Saving, Ties};
pub use refusal::{Lack, Refusal};
pub use shape::{Item, Shape};
pub use ticker::{Stop, StopReason};

use host::{HostState, Reserve};
use ticker::Ticker;
use turns::Turns;

/// How long a component waits behind one that is being compiled before it is compiled beside it. Language runtimes take 2 to 15 s.
const COMPILE_PATIENCE: Duration = Duration::from_secs(5);
/// Linear memories of a component; the most that a language was seen to use is 2.
const MAX_MEMORIES: usize = 4;
/// What the host's own functions have on the stack of an attempt, in bytes.
const HOST_STACK: usize = 1536 * 1024;
/// Tables of a component.
const MAX_TABLES: usize = 16;

/// The WebAssembly engine of a process.
#[derive(Debug)]
pub struct Engine {
    settings: config::Engine,
    ceiling: config::Ceiling,
    slots: u32,
    net: Net,
    reserve: Arc<Reserve>,
    plain: Flavour,
    /// Fuel needs code of its own: both metres together cost up to 1.9 times, so only plugins with a budget pay for it.
    fuelled: OnceLock<Flavour>,
    ticker: Ticker,
    cache: Option<cache::Cache>,
    /// Who may compile.
    compiling: Turns,
    /// Where large components are compiled; in this process if there is none.
    compiler: Option<child::Compiler>,
}

/// A wasmtime engine with everything linked.
struct Flavour {
    engine: wasmtime::Engine,
    linker: Linker<HostState>,
}

impl std::fmt::Debug for Flavour {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Flavour").finish_non_exhaustive()
    }
}

impl Engine {
    /// Makes an engine for at most `slots` attempts at once.
    ///
    /// # Errors
    /// When this machine cannot run it, or the file with certificates cannot be read.
    pub fn new(config: &config::Config, slots: u32) -> anyhow::Result<Self> {
        let settings = &config.engine;
        let ticker = Ticker::start(settings.tick.0)?;
        let plain = Flavour::new(settings, &config.ceiling, slots, false)?;
        ticker.drive(plain.engine.clone());
        let net = Net::start(&crate::http::Settings {
            ca_file: Some(&config.http.ca_file)
                .filter(|path| !path.as_os_str().is_empty())
                .cloned(),
            idle: config.http.idle.0,
        })?;
        Ok(Self {
            settings: settings.clone(),
            ceiling: config.ceiling.clone(),
            slots,
            net,
            reserve: Arc::new(Reserve::new(settings.memory.0)),
            plain,
            fuelled: OnceLock::new(),
            ticker,
            cache: cache::Cache::open(&settings.cache),
            compiling: Turns::new(COMPILE_PATIENCE),
            compiler: config.program.as_deref().map(child::Compiler::new),
        })
    }

    fn flavour(&self, fuel: bool) -> anyhow::Result<&Flavour> {
        if !fuel {
            return Ok(&self.plain);
        }
        if let Some(flavour) = self.fuelled.get() {
            return Ok(flavour);
        }
        let made = Flavour::new(&self.settings, &self.ceiling, self.slots, true)?;
        Ok(self.fuelled.get_or_init(|| {
            self.ticker.drive(made.engine.clone());
            made
        }))
    }
}

impl Flavour {
    fn new(
        settings: &config::Engine,
        ceiling: &config::Ceiling,
        slots: u32,
        fuel: bool,
    ) -> anyhow::Result<Self> {
        let mut options = options(settings, fuel);
        let pooled = settings.pooling.then(|| {
            options.allocation_strategy(InstanceAllocationStrategy::Pooling(pool(slots, ceiling)));
            wasmtime::Engine::new(&options)
        });
        let engine = match pooled {
            Some(Ok(engine)) => engine,
            other => {
                if let Some(Err(error)) = other {
                    tracing::warn!(%error, "no pool for instances on this system (too little address space?): attempts start three times slower");
                }
                options.allocation_strategy(InstanceAllocationStrategy::OnDemand);
                wasmtime::Engine::new(&options)
                    .map_err(anyhow::Error::from)
                    .context("start the WebAssembly engine")?
            }
        };
        let mut linker = Linker::new(&engine);
        worlds::link(&mut linker)
            .map_err(anyhow::Error::from)
            .context("link the worlds")?;
        Ok(Self { engine, linker })
    }
}

/// An engine that only compiles, and what it compiles fits those that run. It has no pool, whose address space a process with limits
/// may not have.
fn compiler(settings: &config::Engine, fuel: bool) -> anyhow::Result<wasmtime::Engine> {
    wasmtime::Engine::new(&options(settings, fuel))
        .map_err(anyhow::Error::from)
        .context("start the WebAssembly engine")
}

fn options(settings: &config::Engine, fuel: bool) -> Config {
    let mut options = Config::new();
    options.epoch_interruption(true);
    options.consume_fuel(fuel);
    options.wasm_function_references(settings.gc);
    options.wasm_gc(settings.gc);
    options.wasm_exceptions(settings.gc);
    // WASI 0.3 only; without it an attempt costs 8 us less.
    options.concurrency_support(false);
    let stack = usize::try_from(settings.stack.0).unwrap_or(usize::MAX);
    options.max_wasm_stack(stack);
    // The host's functions run on the same stack, above the guest's.
    options.async_stack_size(stack.saturating_add(HOST_STACK));
    options
}

/// A pool for `slots` attempts. A permit is taken before each instantiation, so it is never exhausted: that would be an
/// error, not a wait.
fn pool(slots: u32, ceiling: &config::Ceiling) -> PoolingAllocationConfig {
    let mut pool = PoolingAllocationConfig::new();
    // Attempts that were stopped give their places back a moment after their slot.
    let places = slots.saturating_add(slots / 4).saturating_add(4);
    let each = |most: usize| places.saturating_mul(u32::try_from(most).unwrap_or(u32::MAX));
    // For each place as much as the greediest component may have: so no plugin takes the room of another. It is address
    // space, not memory.
    pool.total_component_instances(places);
    pool.total_core_instances(places.saturating_mul(ceiling.instances));
    pool.total_memories(each(MAX_MEMORIES));
    pool.total_tables(each(MAX_TABLES));
    pool.total_stacks(places);
    pool.total_gc_heaps(places);
    pool.max_core_instances_per_component(ceiling.instances);
    pool.max_memories_per_component(u32::try_from(MAX_MEMORIES).unwrap_or(u32::MAX));
    pool.max_tables_per_component(u32::try_from(MAX_TABLES).unwrap_or(u32::MAX));
    pool.table_elements(usize::try_from(ceiling.table_elements).unwrap_or(usize::MAX));
    // Keeping touched pages took a call from 33 to 20 us, but only where the kernel can say which they are; without that it
    // is slower than giving them back.
    if PoolingAllocationConfig::is_pagemap_scan_available() {
        pool.linear_memory_keep_resident(1024 * 1024);
        pool.table_keep_resident(1024 * 1024);
        pool.pagemap_scan(Enabled::Auto);
    }
    pool
}

/// A digest in hexadecimal digits.
pub fn hex(digest: &[u8]) -> String {
    use std::fmt::Write;
    digest
        .iter()
        .fold(String::with_capacity(digest.len() * 2), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
}

/// Shared by everything that belongs to one attempt.
type Shared<T> = Arc<Mutex<T>>;
