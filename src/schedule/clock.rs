//! Local time to moments and back, in one time zone.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, Offset, TimeZone, TimeZoneDatabase};

use super::fields::Fields;
use super::search::DAY;

/// No two offsets of a zone are further apart: the widest jump that ever was is a day, over the date line.
const WIDEST: i64 = 2 * DAY;
/// Changes of the clock that a search looks past. Far more than it meets: it jumps to the neighbourhood of the next named day.
const MOST_CHANGES: usize = 400;

/// A time zone's clock. The rules are those of the database that is built in, so that a fleet of one version agrees.
#[derive(Clone, Debug)]
pub(super) struct Clock(TimeZone);

impl Clock {
    /// `None`: there is no such zone.
    pub(super) fn new(zone: &str) -> Option<Self> {
        TimeZoneDatabase::bundled().get(zone).ok().map(Self)
    }

    pub(super) fn show(&self, moment: i64) -> String {
        let at = at(moment);
        let offset = self.0.to_offset(at);
        at.display_with_offset(offset).to_string()
    }

    pub(super) fn next(&self, fields: &Fields, after: i64) -> Option<i64> {
        if fields.is_rhythm() {
            return self.next_in_rhythm(fields, after);
        }
        // What lies before the local time of `after` is never later than it: a clock that goes back repeats only what it has shown,
        // and of that the first time counts.
        let mut local = fields.from(self.local(after) + 1)?;
        loop {
            let tick = self.first(local);
            if tick > after {
                return Some(tick);
            }
            local = fields.from(local + 1)?;
        }
    }

    pub(super) fn previous(&self, fields: &Fields, before: i64) -> Option<i64> {
        if fields.is_rhythm() {
            return self.previous_in_rhythm(fields, before);
        }
        // Where the clock has just gone back, it has shown later times before.
        let shown = self
            .change_before(before)
            .map_or(i64::MIN, |change| change + self.offset(change - 1));
        let last = self.local(before).max(shown);
        let mut local = fields.up_to(last)?;
        loop {
            let tick = self.first(local);
            if tick < before {
                return Some(tick);
            }
            local = fields.up_to(local - 1)?;
        }
    }

    fn next_in_rhythm(&self, fields: &Fields, after: i64) -> Option<i64> {
        let mut from = after + 1;
        for _ in 0..MOST_CHANGES {
            // As long as the clock is not changed, local time is this much ahead.
            let offset = self.offset(from);
            let tick = fields.from(from + offset)? - offset;
            match self.change_after(from) {
                Some(change) if change <= tick => from = change.max(tick - WIDEST),
                _ => return Some(tick),
            }
        }
        None
    }

    fn previous_in_rhythm(&self, fields: &Fields, before: i64) -> Option<i64> {
        let mut until = before - 1;
        for _ in 0..MOST_CHANGES {
            let offset = self.offset(until);
            let tick = fields.up_to(until + offset)? - offset;
            match self.change_before(until + 1) {
                Some(change) if change > tick => until = (change - 1).min(tick + WIDEST),
                _ => return Some(tick),
            }
        }
        None
    }

    /// The moment of a local time: the first of two, or the first after the gap that it falls into.
    fn first(&self, local: i64) -> i64 {
        match self.0.to_ambiguous_timestamp(civil(local)).offset() {
            AmbiguousOffset::Unambiguous { offset } => local - seconds(offset),
            AmbiguousOffset::Fold { before, .. } => local - seconds(before),
            AmbiguousOffset::Gap { before, after } => self
                .change_after(local - seconds(after))
                .unwrap_or(local - seconds(before)),
        }
    }

    fn local(&self, moment: i64) -> i64 {
        moment + self.offset(moment)
    }

    /// Seconds that local time is ahead of UTC.
    fn offset(&self, moment: i64) -> i64 {
        seconds(self.0.to_offset(at(moment)))
    }

    /// The first change of the clock after a moment.
    fn change_after(&self, moment: i64) -> Option<i64> {
        self.0
            .following(at(moment))
            .map(|change| change.timestamp().as_second())
            .find(|change| *change > moment)
    }

    /// The last change of the clock before a moment.
    fn change_before(&self, moment: i64) -> Option<i64> {
        self.0
            .preceding(at(moment))
            .map(|change| change.timestamp().as_second())
            .find(|change| *change < moment)
    }
}

fn seconds(offset: Offset) -> i64 {
    i64::from(offset.seconds())
}

/// Ticks are asked for between 2000 and 2200, and nine years around; jiff goes from -9999 to 9999.
fn at(moment: i64) -> Timestamp {
    Timestamp::from_second(moment).unwrap_or(if moment < 0 {
        Timestamp::MIN
    } else {
        Timestamp::MAX
    })
}

/// A local time's date and time of day.
fn civil(local: i64) -> DateTime {
    Offset::UTC.to_datetime(at(local))
}
