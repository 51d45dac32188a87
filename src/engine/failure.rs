//! What a call came to: one [`Failure`] from traps, limits and the guest's own word. The class is a field, never prose.

use std::time::Duration;

use wasmtime::component::ResourceTableError;
use wasmtime_wasi::I32Exit;

use super::host::HostState;
use super::worlds::{GaveUp, Said, Wish};
use super::{Stop, StopReason};
use crate::config::Limits;
use crate::job::{Disposition, Failure, FailureClass, check_json};

/// What the guest returned, if it got so far.
pub(super) type Returned = wasmtime::Result<Said>;

/// The longest that a guest may ask to wait, so that a due time stays within what the queue takes.
const LONGEST_WAIT: Duration = Duration::from_secs(10 * 365 * 86_400);

/// Turns the end of a call into a result or a failure. `returned` is `None` for a call that was stopped.
pub(super) fn judge(
    returned: Option<Returned>,
    stop: &Stop,
    limits: &Limits,
    state: &HostState,
    version: &str,
) -> Result<Option<String>, Failure> {
    match returned {
        Some(Ok(Ok(result))) => accept(result, limits),
        Some(Ok(Err(failure))) => Err(given_up(&failure, limits)),
        Some(Err(error)) => Err(stop.reason().map_or_else(
            || trapped(&error, limits, state, version),
            |reason| stopped(reason, limits),
        )),
        None => Err(stopped(
            stop.reason().unwrap_or(StopReason::Timeout),
            limits,
        )),
    }
}

fn accept(result: Option<String>, limits: &Limits) -> Result<Option<String>, Failure> {
    if let Some(text) = &result {
        // The same answer would come again: a retry is useless.
        check_json(text, limits.result).map_err(|error| {
            Failure::new(
                FailureClass::BadResult,
                format!("the handler's result is refused: {error}"),
                Disposition::Discard,
            )
        })?;
    }
    Ok(result)
}

fn given_up(failure: &GaveUp, limits: &Limits) -> Failure {
    let seconds = |seconds: u32, least: u64| {
        Duration::from_secs(u64::from(seconds).max(least)).min(LONGEST_WAIT)
    };
    let (class, disposition) = match failure.wish {
        Wish::Retry => (FailureClass::GuestRetry, Disposition::Backoff),
        Wish::RetryAfter(wait) => (
            FailureClass::GuestRetry,
            Disposition::After(seconds(wait, 0)),
        ),
        // A snooze uses no attempt, so one of no length would run for ever at full speed.
        Wish::Snooze(wait) => (FailureClass::Snoozed, Disposition::Refund(seconds(wait, 1))),
        Wish::Discard => (FailureClass::GuestDiscard, Disposition::Discard),
    };
    Failure::within(limits.error_text, class, &failure.message, disposition)
}

fn stopped(reason: StopReason, limits: &Limits) -> Failure {
    match reason {
        StopReason::Timeout => Failure::new(
            FailureClass::Timeout,
            format!(
                "the time limit of {} passed",
                humantime::format_duration(limits.timeout)
            ),
            Disposition::Backoff,
        ),
        StopReason::CpuLimit => Failure::new(
            FailureClass::CpuLimit,
            format!(
                "the computing time of {} is used up",
                humantime::format_duration(limits.cpu)
            ),
            Disposition::Backoff,
        ),
        StopReason::Cancelled => Failure::new(
            FailureClass::Cancelled,
            "the job was cancelled",
            Disposition::Discard,
        ),
        StopReason::HandBack => Failure::new(
            FailureClass::HandedBack,
            "the runner stopped and handed the job back",
            Disposition::Refund(Duration::ZERO),
        ),
        StopReason::LeaseLost => Failure::new(
            FailureClass::HostLost,
            "the runner lost its lease",
            Disposition::Backoff,
        ),
    }
}

fn trapped(error: &wasmtime::Error, limits: &Limits, state: &HostState, version: &str) -> Failure {
    let trap = error.downcast_ref::<wasmtime::Trap>();
    if trap == Some(&wasmtime::Trap::OutOfFuel) {
        let budget = limits.fuel.unwrap_or_default();
        return Failure::new(
            FailureClass::OutOfFuel,
            format!("the fuel budget of {budget} is used up"),
            Disposition::Backoff,
        );
    }
    if state.memory.reserve_empty {
        return Failure::new(
            FailureClass::HostError,
            "the memory of all handlers together is used up (`memory` under `[engine]` in runner.toml)",
            Disposition::Refund(Duration::from_secs(1)),
        );
    }
    if let Some(denied) = &state.memory.denied {
        return Failure::new(FailureClass::OutOfMemory, denied, Disposition::Backoff);
    }
    if let Some(limit) = error.downcast_ref::<wasmtime::PoolConcurrencyLimitError>() {
        return Failure::new(
            FailureClass::HostError,
            format!("no room for the instance: {limit}"),
            Disposition::Refund(Duration::from_secs(1)),
        );
    }
    let mut cause = match error.downcast_ref::<I32Exit>() {
        Some(exit) => format!("the guest exited with code {}", exit.0),
        // The display of the whole error begins with a backtrace.
        None => error.root_cause().to_string(),
    };
    // Of the two tables of handles, only the host's own has an error with a type.
    if matches!(error.downcast_ref(), Some(ResourceTableError::Full))
        || cause.contains("store handle limit exceeded")
    {
        cause = format!("the guest holds more than {} handles", limits.handles);
    }
    // A guest that is refused a table element traps as if by accident, too.
    if let Some(denied) = &state.memory.denied_table {
        cause = format!("{denied}; {cause}");
    }
    let said = state
        .output
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
        .error_tail();
    let said = if said.is_empty() {
        String::new()
    } else {
        format!("; standard error ends: {said}")
    };
    Failure::within(
        limits.error_text,
        FailureClass::Trap,
        format!("{cause} (plugin {version}){said}"),
        Disposition::Backoff,
    )
}
