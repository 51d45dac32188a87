//! Which component serves which job type. The map is replaced whole, never changed: an attempt keeps the version that it
//! started with, and a file that does not load never displaces the version that serves.
//!
//! ```text
//!   files of the folder ── Folder ─┐
//!                                  ├─ Shelf ── Registry ── an attempt asks once, and keeps what it got
//!   releases of the fleet ─ Fleet ─┘
//! ```

use std::sync::Arc;

use crate::config::PluginRules;
use crate::engine::{Grants, Handler};

mod fleet;
mod folder;
mod hint;
mod load;
mod refit;
mod registry;
mod shelf;
mod signature;
mod state;

pub use load::{Key, Load, Loaded, vet};
pub use refit::{Refit, Refitted, refit};
pub use registry::{Canary, Registry, Served};
pub use shelf::{Shelf, require_folder};
pub use signature::read_signature;
pub use state::{PluginState, Source, State};

/// One loaded component with its rules.
#[derive(Debug)]
pub struct Plugin {
    /// Where it comes from.
    pub source: Source,
    /// The name of its section in the settings; the file's name without `.wasm`.
    pub name: String,
    /// The signature that a release came with; that of a file lies beside it.
    pub signature: Option<String>,
    /// Runs the jobs. New settings make another plugin of the same handler.
    pub handler: Arc<Handler>,
    /// Retries, concurrency, and what the grants were made of.
    pub rules: PluginRules,
    /// Limits, HTTP and settings of its attempts.
    pub grants: Grants,
}
