//! Job types that need more than a pick: those with limits over all runners, and those with groups. What one answer of
//! `piecework.take` says about a type is kept for the next question.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::time::Duration;

use tokio::time::Instant;

use crate::config::FleetLimits;
use crate::job::{Claimed, JobType, Priority, Timestamp};
use crate::store::{Demand, Groups, Known, Note};

/// How long a type whose last group job is gone is still asked for as one that has groups.
const REMEMBER: Duration = Duration::from_secs(60);
/// Most groups with marks. The dead entries of more groups lie apart from each other, and looking for groups costs little: with 1,000
/// groups and a pinned horizon a drain keeps its speed without marks, with one group it falls to a third.
const MARKED: usize = 32;
/// How long a type that has more is taken to have more.
const MANY: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct Quotas {
    types: HashMap<JobType, State>,
}

#[derive(Debug, Default)]
struct State {
    known: Known,
    /// Groups that had jobs lately, with the place of the last one claimed; none while there are many.
    marks: BTreeMap<(Priority, String), (Timestamp, i64)>,
    many_until: Option<Instant>,
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

    /// Groups of a type that had jobs lately, those that are next in turn; `None` when there are none.
    pub(super) fn groups(&self, job_type: &JobType) -> Option<Groups> {
        let state = self
            .types
            .get(job_type)
            .filter(|state| !state.marks.is_empty())?;
        let mut groups = Groups::new();
        for priority in Priority::ALL {
            let last = state.known.cursors.get(&priority.0.to_string());
            let origin = (priority, last.cloned().unwrap_or_default());
            let end = (Priority(priority.0 + 1), String::new());
            let ahead = state
                .marks
                .range((Bound::Excluded(origin.clone()), Bound::Excluded(end)));
            let behind = state.marks.range((priority, String::new())..=origin);
            let list: Vec<_> = ahead
                .chain(behind)
                .map(|((_, group), mark)| (group.clone(), *mark))
                .collect();
            if !list.is_empty() {
                groups.insert(priority, list);
            }
        }
        Some(groups)
    }

    /// Learns which groups have jobs, from what a claim got of those that it asked for.
    pub(super) fn mark(&mut self, demand: &Demand, claimed: &[Claimed], notes: &[(JobType, Note)]) {
        let now = Instant::now();
        for quota in &demand.quotas {
            let note = notes.iter().find(|(of, _)| *of == quota.job_type);
            let free = note.is_some_and(|(_, note)| note.again.is_none());
            let of_type = || claimed.iter().filter(|job| job.job_type == quota.job_type);
            let room = quota.want.min(demand.quota_total) as usize;
            let (Some(groups), Some(state)) = (&quota.groups, self.types.get_mut(&quota.job_type))
            else {
                continue;
            };
            if !free || of_type().count() >= room {
                continue;
            }
            // Each was asked, and no limit was in the way: those that gave nothing have no more.
            for (priority, list) in groups {
                for (group, _) in list {
                    let gave = |job: &Claimed| {
                        job.priority == *priority && job.group_key.as_ref() == Some(group)
                    };
                    if !of_type().any(gave) {
                        state.marks.remove(&(*priority, group.clone()));
                    }
                }
            }
        }
        for job in claimed {
            let Some(group) = &job.group_key else {
                continue;
            };
            let state = self.types.entry(job.job_type.clone()).or_default();
            if state.many_until.is_some_and(|until| now < until) {
                continue;
            }
            let place = (job.due_at, job.id.0);
            let mark = state
                .marks
                .entry((job.priority, group.clone()))
                .or_insert(place);
            *mark = (*mark).max(place);
            if state.marks.len() > MARKED {
                state.marks.clear();
                state.many_until = Some(now + MANY);
            }
        }
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
