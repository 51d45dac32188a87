//! Schedules: computes when they tick, and fires what is due. Every runner does it for all schedules, whatever it serves; the row of
//! the schedule decides which of them turns a tick into its job.
//!
//! Times come from the database and go back to it: the clock of this process only measures how long to sleep.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::Shared;
use crate::config::{Config, ScheduleSettings};
use crate::job::{RunnerId, Timestamp};
use crate::schedule::Spec;
use crate::store::{DueSchedule, Error, Fired, NewSchedule};

/// Longest sleep: a schedule that was just made or resumed is noticed by then.
const INTERVAL: Duration = Duration::from_secs(5);
/// Between two tries while the database does not answer, at first.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// Schedules read at once.
const AT_ONCE: u32 = 500;
/// A tick that is fired later than this was missed: nobody was there. A runner that is restarted takes less.
const LATE: i64 = 60;
/// What all runners of a fleet wait at random past a tick, so that they do not ask all at once.
const JITTER_MILLIS: u64 = 100;

/// Fires what is due, until dropped.
pub(super) async fn fire(shared: Arc<Shared>) {
    let mut declared: Option<(RunnerId, Arc<Config>)> = None;
    let mut again = FIRST_PAUSE;
    loop {
        let (runner, config) = (*shared.identity.borrow(), shared.config());
        let known = |(id, before): &(RunnerId, Arc<Config>)| {
            runner == Some(*id) && Arc::ptr_eq(before, &config)
        };
        if let Some(runner) = runner.filter(|_| !declared.as_ref().is_some_and(known)) {
            match declare(&shared, runner, &config, declared.as_ref()).await {
                Ok(()) => declared = Some((runner, config)),
                Err(error) => {
                    tracing::warn!(%error, "the schedules of the settings could not be written");
                }
            }
        }
        match look(&shared).await {
            Ok(wait) => {
                again = FIRST_PAUSE;
                let jitter = Duration::from_millis(fastrand::u64(5..JITTER_MILLIS));
                tokio::select! {
                    () = sleep(wait + jitter) => {}
                    () = shared.rescheduled.notified() => {}
                }
            }
            Err(error) => {
                tracing::warn!(%error, "schedules could not be looked at");
                sleep(again.mul_f64(0.75 + fastrand::f64() / 2.0)).await;
                again = (again * 2).min(INTERVAL);
            }
        }
    }
}

/// Writes the schedules of the settings when the process begins, and those that new settings change. A runner that registers anew
/// only puts back what was forgotten meanwhile: it must not undo what a newer one has changed.
async fn declare(
    shared: &Shared,
    runner: RunnerId,
    config: &Config,
    before: Option<&(RunnerId, Arc<Config>)>,
) -> Result<(), Error> {
    let schedules = &config.schedules;
    if let Some((_, before)) = before.filter(|(_, before)| before.schedules != *schedules) {
        let removed = before
            .schedules
            .keys()
            .any(|name| !schedules.contains_key(name));
        let added = schedules
            .keys()
            .any(|name| !before.schedules.contains_key(name));
        if removed || added {
            shared
                .store
                .runner_schedules(runner, &names(config))
                .await?;
        }
    }
    if schedules.is_empty() {
        return Ok(());
    }
    let anew = before.is_some_and(|(id, _)| *id != runner);
    let known = if anew {
        shared.store.schedules_list().await?
    } else {
        Vec::new()
    };
    for (name, settings) in schedules {
        let old = before.and_then(|(_, before)| before.schedules.get(name));
        let there = !anew || known.iter().any(|line| line.name == *name);
        if there && old == Some(settings) {
            continue;
        }
        if !shared.store.schedule_declare(&new(name, settings)).await? {
            tracing::warn!(
                schedule = name,
                "the settings have a schedule whose name belongs to one that was made by SQL; that one is left as it is: rename either, or remove that one with `piecework schedules remove`"
            );
        }
    }
    Ok(())
}

/// The names that a runner registers with.
pub(super) fn names(config: &Config) -> Vec<&str> {
    config.schedules.keys().map(String::as_str).collect()
}

fn new(name: &str, settings: &ScheduleSettings) -> NewSchedule {
    NewSchedule {
        name: name.to_owned(),
        job_type: settings.job_type.clone().unwrap_or_else(|| name.to_owned()),
        payload: settings.payload_text(),
        priority: settings.priority,
        max_attempts: settings.max_attempts,
        ordering_key: settings.ordering_key.clone(),
        cron: settings.cron.clone(),
        zone: settings.zone.clone(),
        every: settings.every.map(|every| every.0),
        missed: Some(settings.missed.as_str().to_owned()),
        overlap: Some(settings.overlap.as_str().to_owned()),
        tick_as: settings.tick_as.clone(),
    }
}

/// Looks at the table once. Returns how long there is nothing to do.
async fn look(shared: &Shared) -> Result<Duration, Error> {
    let mut wait = INTERVAL;
    let mut schedules = shared.store.schedules_due(INTERVAL, AT_ONCE).await?;
    if schedules.len() == AT_ONCE as usize {
        wait = Duration::ZERO;
    }
    // Many that are due at once are shared by the fleet, since each runner begins elsewhere.
    fastrand::shuffle(&mut schedules);
    for schedule in &schedules {
        match schedule.seconds {
            Some(seconds) if seconds > 0.0 => wait = wait.min(Duration::from_secs_f64(seconds)),
            _ => wait = wait.min(step(shared, schedule).await?),
        }
    }
    Ok(wait)
}

/// Moves one schedule on by one tick. Returns when to look again.
async fn step(shared: &Shared, schedule: &DueSchedule) -> Result<Duration, Error> {
    let store = &shared.store;
    let name = &schedule.name;
    let planned = match plan(schedule) {
        Ok(planned) => planned,
        Err(why) => {
            tracing::warn!(schedule = name, why, "a schedule cannot tick");
            store.schedule_refuse(schedule, &why).await?;
            return Ok(INTERVAL);
        }
    };
    let fired = store
        .schedule_fire(schedule, planned.tick, planned.next)
        .await;
    if planned.missed && matches!(fired, Ok(Fired::Job(_) | Fired::Busy | Fired::Moved)) {
        tracing::warn!(
            schedule = name,
            since = %schedule.next_tick.unwrap_or(schedule.now),
            "ticks of a schedule were missed"
        );
    }
    match fired {
        Ok(Fired::Job(job)) => {
            tracing::debug!(schedule = name, %job, tick = %planned.tick.unwrap_or(schedule.now), "tick fired");
        }
        Ok(Fired::Busy) => {
            tracing::info!(
                schedule = name,
                "no job for a tick: that of the tick before has not ended"
            );
        }
        Ok(Fired::Moved) => {}
        // Most likely another was first. Should it have failed after all, its tick is still there.
        Ok(Fired::NotOurs) | Err(Error::Locked(_)) => return Ok(Duration::from_secs(1)),
        Err(Error::Refused { message }) => {
            tracing::warn!(schedule = name, why = message, "a schedule cannot tick");
            store.schedule_refuse(schedule, &message).await?;
        }
        Err(error) if error.is_passing() => return Err(error),
        Err(error) => {
            // The others go on.
            tracing::warn!(schedule = name, %error, "a tick could not be fired");
            return Ok(Duration::from_secs(1));
        }
    }
    let seconds = planned.next.0.saturating_sub(schedule.now.0).max(0);
    Ok(Duration::from_micros(seconds.unsigned_abs()))
}

/// What to do about a schedule.
#[derive(Debug, PartialEq)]
struct Planned {
    /// The tick to fire, if any.
    tick: Option<Timestamp>,
    next: Timestamp,
    missed: bool,
}

fn plan(schedule: &DueSchedule) -> Result<Planned, String> {
    let spec = match (&schedule.cron, schedule.every) {
        (Some(cron), _) => Spec::cron(cron, &schedule.zone),
        (None, every) => {
            Spec::every(Duration::try_from_secs_f64(every.unwrap_or_default()).unwrap_or_default())
        }
    }
    .map_err(|error| error.to_string())?;
    let after = |second: i64| {
        spec.next(second)
            .map(timestamp)
            .ok_or_else(|| "it ticks no more before the year 2200".to_owned())
    };
    let now = second(schedule.now);
    let Some(due) = schedule.next_tick else {
        return Ok(Planned {
            tick: None,
            next: after(now)?,
            missed: false,
        });
    };
    if now - second(due) <= LATE {
        return Ok(Planned {
            tick: Some(due),
            next: after(second(due))?,
            missed: false,
        });
    }
    let newest = spec.previous(now + 1).map_or(due, timestamp).max(due);
    Ok(Planned {
        tick: schedule.once.then_some(newest),
        next: after(now)?,
        missed: true,
    })
}

/// Whole seconds since 1970, as the rules count; a fraction is cut off.
fn second(moment: Timestamp) -> i64 {
    moment.unix_micros().div_euclid(1_000_000)
}

fn timestamp(second: i64) -> Timestamp {
    Timestamp::from_unix_micros(second * 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        let moment: jiff::Timestamp = text.parse().unwrap_or_default();
        Timestamp::from_unix_micros(moment.as_microsecond())
    }

    fn read(now: &str, next: Option<&str>, once: bool) -> DueSchedule {
        DueSchedule {
            name: "report".into(),
            revision: 1,
            cron: Some("*/10 * * * *".into()),
            zone: "UTC".into(),
            every: None,
            once,
            next_tick: next.map(at),
            now: at(now),
            seconds: None,
        }
    }

    fn planned(tick: Option<&str>, next: &str, missed: bool) -> Planned {
        Planned {
            tick: tick.map(at),
            next: at(next),
            missed,
        }
    }

    #[test]
    fn a_tick_up_to_a_minute_late_is_in_time() {
        for now in ["2026-01-01T00:10:00Z", "2026-01-01T00:11:00.9Z"] {
            assert_eq!(
                plan(&read(now, Some("2026-01-01T00:10:00Z"), false)),
                Ok(planned(
                    Some("2026-01-01T00:10:00Z"),
                    "2026-01-01T00:20:00Z",
                    false
                ))
            );
        }
    }

    #[test]
    fn later_ones_were_missed_and_give_no_job_or_one() {
        let (now, due) = ("2026-01-01T00:45:30.5Z", Some("2026-01-01T00:10:00Z"));
        assert_eq!(
            plan(&read(now, due, false)),
            Ok(planned(None, "2026-01-01T00:50:00Z", true))
        );
        assert_eq!(
            plan(&read(now, due, true)),
            Ok(planned(
                Some("2026-01-01T00:40:00Z"),
                "2026-01-01T00:50:00Z",
                true
            ))
        );
    }

    #[test]
    fn a_new_schedule_begins_with_the_next_tick() {
        assert_eq!(
            plan(&read("2026-01-01T00:09:59.999Z", None, true)),
            Ok(planned(None, "2026-01-01T00:10:00Z", false))
        );
        let bad = DueSchedule {
            cron: Some("0 0 30 2 *".into()),
            ..read("2026-01-01T00:00:00Z", None, true)
        };
        assert!(plan(&bad).is_err_and(|why| why.contains("`0 0 30 2 *` can never tick")));
    }
}
