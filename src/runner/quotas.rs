//! Job types that need more than a pick: those with limits over all runners, and those with groups. What one answer of
//! `piecework.take` says about a type is kept for the next question.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::config::FleetLimits;
use crate::job::JobType;
use crate::store::{Known, Note};

/// How long a type whose last group job is gone is still asked for as one that has groups.
const REMEMBER: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct Quotas {
    types: HashMap<JobType, State>,
}

#[derive(Debug, Default)]
struct State {
    known: Known,
    /// When jobs with a group were last seen.
    groups_at: Option<Instant>,
    /// The type is full: not asked for until then.
    full_until: Option<Instant>,
    /// When a limit may allow more.
    again_at: Option<Instant>,
}

impl Quotas {
    /// Whether a type needs a quota rather than picks.
    pub(super) fn applies(&self, job_type: &JobType, limits: &FleetLimits) -> bool {
        limits.any()
            || self
                .types
                .get(job_type)
                .and_then(|state| state.groups_at)
                .is_some_and(|at| at.elapsed() < REMEMBER)
    }

    /// Whether it makes sense to ask for a type now.
    pub(super) fn may_ask(&self, job_type: &JobType) -> bool {
        let full = self.types.get(job_type).and_then(|state| state.full_until);
        full.is_none_or(|until| Instant::now() >= until)
    }

    /// What was said about a type last.
    pub(super) fn known(&self, job_type: &JobType) -> Known {
        self.types
            .get(job_type)
            .map(|state| state.known.clone())
            .unwrap_or_default()
    }

    /// Learns from an answer.
    pub(super) fn learn(&mut self, notes: Vec<(JobType, Note)>) {
        let now = Instant::now();
        for (job_type, note) in notes {
            let again = note.again();
            let state = self.types.entry(job_type).or_default();
            if note.groups {
                state.groups_at = Some(now);
            }
            // Jittered, so that runners that met the limit together do not ask together.
            let again_at = again.map(|again| now + again.mul_f64(1.0 + fastrand::f64() / 4.0));
            state.again_at = again_at;
            state.full_until = again_at.filter(|_| note.full);
            state.known.cursors.extend(note.known.cursors);
            // Answers may come in another order than they were given in.
            state.known.oldest = state.known.oldest.max(note.known.oldest);
        }
    }

    /// A job of this type ended here: where running jobs are limited, there is room for another.
    pub(super) fn ended(&mut self, job_type: &JobType) {
        if let Some(state) = self.types.get_mut(job_type) {
            state.full_until = None;
        }
    }

    /// The limits may be others now.
    pub(super) fn relimit(&mut self) {
        for state in self.types.values_mut() {
            state.full_until = None;
        }
    }

    /// When a limit may allow more.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.types.values().filter_map(|state| state.again_at).min()
    }

    /// That time has come.
    pub(super) fn looked(&mut self) {
        let now = Instant::now();
        for state in self.types.values_mut() {
            state.again_at = state.again_at.filter(|at| *at > now);
        }
    }
}
