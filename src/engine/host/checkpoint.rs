//! `checkpoint`: read from what came with the job, written at once through the attempt's ledger.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::HostState;
use crate::engine::worlds::v0_1::piecework::handler::checkpoint;
use crate::job::{check_json, printed_bytes};

/// A checkpoint's name, in bytes.
const MAX_NAME_BYTES: usize = 200;

/// What a job has saved so far: JSON text by name.
#[derive(Debug)]
pub(super) enum Saved {
    /// As it came with the job; most attempts never look.
    Unread(Option<String>),
    Read(BTreeMap<String, Box<RawValue>>),
}

impl Saved {
    fn read(&mut self) -> &mut BTreeMap<String, Box<RawValue>> {
        if let Self::Unread(text) = self {
            let map = text
                .take()
                // It is the database's own object, so it always parses.
                .and_then(|text| serde_json::from_str(&text).ok())
                .unwrap_or_default();
            *self = Self::Read(map);
        }
        match self {
            Self::Read(map) => map,
            Self::Unread(_) => unreachable!("it was read above"),
        }
    }
}

impl checkpoint::Host for HostState {
    async fn load(&mut self, name: String) -> wasmtime::Result<Option<String>> {
        let saved = self.saved.read().get(&name);
        Ok(saved.map(|value| value.get().to_owned()))
    }

    async fn save(&mut self, name: String, json: String) -> wasmtime::Result<Result<(), String>> {
        let value = match self.check(&name, json) {
            Ok(value) => value,
            Err(reason) => return Ok(Err(reason)),
        };
        self.saves += 1;
        let saving = self.ledger.save(&name, value.get());
        let saved = saving.await;
        if saved.is_ok() {
            self.saved.read().insert(name, value);
        }
        Ok(saved)
    }
}

impl HostState {
    fn check(&mut self, name: &str, json: String) -> Result<Box<RawValue>, String> {
        if name.is_empty() || name.len() > MAX_NAME_BYTES || name.contains('\0') {
            return Err(format!(
                "a checkpoint's name has 1 to {MAX_NAME_BYTES} bytes, none of them U+0000"
            ));
        }
        if self.saves >= self.limits.checkpoint_saves {
            return Err(format!(
                "an attempt saves at most {} times",
                self.limits.checkpoint_saves
            ));
        }
        let limit = self.limits.checkpoint;
        check_json(&json, limit).map_err(|error| format!("the checkpoint is refused: {error}"))?;
        // As the database prints them: an attempt must not be refused what an earlier one saved.
        let size = |json: &str| printed_bytes(json).unwrap_or(usize::MAX);
        let total = self
            .saved
            .read()
            .iter()
            .filter(|(other, _)| *other != name)
            .map(|(other, value)| other.len().saturating_add(size(value.get())))
            .fold(
                name.len().saturating_add(size(&json)),
                usize::saturating_add,
            );
        if total > limit {
            return Err(format!(
                "the checkpoints of a job have at most {limit} bytes together, these would have {total}"
            ));
        }
        RawValue::from_string(json).map_err(|error| error.to_string())
    }
}
