//! When a schedule ticks: a cron expression in a time zone, or a fixed interval. Pure: no clock and no I/O, moments come in and go
//! out as seconds since 1970 UTC, so that all runners agree about every tick without a word to each other.
//!
//! The rules for days on which clocks change:
//! - An expression that leaves out some hour of the day names fixed times. Each is one tick on each calendar day: one that the clocks
//!   jump over ticks at the first moment after the gap, one that they repeat ticks the first time only.
//! - An expression whose hours are all 24 names a rhythm. It ticks whenever the local clock shows a time that it names, so minutes
//!   keep their distance through the repeated hour and across the gap.
//!
//! Why not a crate for this: croner 4.0.3 ticked at `*/30 2 * * *` four times on the long day and not at all on the short one, and took
//! 230 ms (in a debug build) to refuse `0 0 31 2,4,6 *`, which here needs no search.

mod clock;
mod fields;
mod search;

use std::time::Duration;

use clock::Clock;
use fields::Fields;

/// Ticks lie from 2000 up to 2200, as do the times of jobs. In seconds since 1970.
pub const FIRST: i64 = 946_684_800;
/// See [`FIRST`].
pub const END: i64 = 7_258_118_400;
/// Longest cron expression, in bytes.
const MAX_TEXT: usize = 500;
/// Longest interval: a year, as every duration in the settings.
const MAX_INTERVAL: u64 = 365 * 86_400;

/// What is wrong with a schedule; names it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No cron expression.
    #[error("the cron expression `{text}` is not understood: {why}")]
    Malformed {
        /// The expression.
        text: String,
        /// What is wrong.
        why: String,
    },
    /// No date is ever like that.
    #[error("the cron expression `{text}` can never tick: {why}")]
    Impossible {
        /// The expression.
        text: String,
        /// Why.
        why: String,
    },
    /// No such time zone.
    #[error(
        "the time zone `{0}` is not known: write a name of the IANA database such as \"Europe/Berlin\", or \"UTC\""
    )]
    Zone(String),
    /// No interval that a schedule can have.
    #[error("the interval {0:?} is not one of whole seconds, 1s to 365 days")]
    Interval(Duration),
}

/// When a schedule ticks.
#[derive(Clone, Debug)]
pub struct Spec(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Cron(Box<(Fields, Clock)>),
    /// Seconds; ticks are the multiples since 2000-01-01 UTC.
    Every(i64),
}

impl Spec {
    /// A cron expression of five fields, or six with the seconds first, in a time zone.
    ///
    /// # Errors
    /// Names the expression or the zone, and what is wrong with it.
    pub fn cron(text: &str, zone: &str) -> Result<Self, Error> {
        let clock = Clock::new(zone).ok_or_else(|| Error::Zone(shortened(zone)))?;
        let malformed = |why| Error::Malformed {
            text: shortened(text),
            why,
        };
        if text.len() > MAX_TEXT {
            return Err(malformed(format!("it has more than {MAX_TEXT} bytes")));
        }
        let fields = Fields::parse(text).map_err(malformed)?;
        if let Some(why) = fields.impossible() {
            return Err(Error::Impossible {
                text: text.to_owned(),
                why,
            });
        }
        Ok(Self(Kind::Cron(Box::new((fields, clock)))))
    }

    /// A fixed interval.
    ///
    /// # Errors
    /// When it is not of whole seconds, or is too short or too long.
    pub fn every(interval: Duration) -> Result<Self, Error> {
        let seconds = interval.as_secs();
        if interval.subsec_nanos() > 0 || !(1..=MAX_INTERVAL).contains(&seconds) {
            return Err(Error::Interval(interval));
        }
        Ok(Self(Kind::Every(seconds.cast_signed())))
    }

    /// The first tick after a moment; `None` when there is none before 2200.
    pub fn next(&self, after: i64) -> Option<i64> {
        let after = after.clamp(FIRST - 1, END);
        let tick = match &self.0 {
            Kind::Cron(cron) => cron.1.next(&cron.0, after)?,
            Kind::Every(seconds) => FIRST + ((after - FIRST).div_euclid(*seconds) + 1) * seconds,
        };
        (tick < END).then_some(tick)
    }

    /// The last tick before a moment; `None` when there is none since 2000.
    pub fn previous(&self, before: i64) -> Option<i64> {
        let before = before.clamp(FIRST, END);
        let tick = match &self.0 {
            Kind::Cron(cron) => cron.1.previous(&cron.0, before)?,
            Kind::Every(seconds) => FIRST + (before - 1 - FIRST).div_euclid(*seconds) * seconds,
        };
        (tick >= FIRST).then_some(tick)
    }

    /// A tick as the clocks of the schedule's zone show it: RFC 3339 with the offset.
    pub fn local(&self, tick: i64) -> String {
        match &self.0 {
            Kind::Cron(cron) => cron.1.show(tick),
            Kind::Every(_) => utc(tick),
        }
    }
}

/// A moment in UTC, RFC 3339.
pub fn utc(moment: i64) -> String {
    jiff::Timestamp::from_second(moment).map_or_else(|_| moment.to_string(), |at| at.to_string())
}

/// Names in errors stay readable.
fn shortened(text: &str) -> String {
    if text.chars().count() <= 80 {
        return text.to_owned();
    }
    text.chars().take(79).chain(['…']).collect()
}
