//! The calendar: the nearest local time that an expression names. Local times are counted in seconds as if their clock had always
//! run through. A search ends after nine years of days, which is the longest that 29 February lets wait (1896, 2096), and one more.

use super::fields::Fields;

pub(super) const DAY: i64 = 86_400;
const MOST_DAYS: i64 = 9 * 366;

impl Fields {
    /// The first local time from this one on.
    pub(super) fn from(&self, local: i64) -> Option<i64> {
        let today = local.div_euclid(DAY);
        if self.names_day(today)
            && let Some(time) = self.time_from(local.rem_euclid(DAY))
        {
            return Some(today * DAY + time);
        }
        let day = (today + 1..=today + MOST_DAYS).find(|day| self.names_day(*day))?;
        Some(day * DAY + self.time_from(0)?)
    }

    /// The last local time up to this one.
    pub(super) fn up_to(&self, local: i64) -> Option<i64> {
        let today = local.div_euclid(DAY);
        if self.names_day(today)
            && let Some(time) = self.time_up_to(local.rem_euclid(DAY))
        {
            return Some(today * DAY + time);
        }
        let day = (today - MOST_DAYS..today)
            .rev()
            .find(|day| self.names_day(*day))?;
        Some(day * DAY + self.time_up_to(DAY - 1)?)
    }

    /// With both a day of the month and a day of the week given either will do, as in every cron.
    fn names_day(&self, day: i64) -> bool {
        let (month, day_of_month) = civil(day);
        if self.months >> month & 1 == 0 {
            return false;
        }
        // 1970-01-01 was a Thursday.
        let weekday = (day + 4).rem_euclid(7);
        let by_day = self.days >> day_of_month & 1 == 1;
        let by_weekday = self.weekdays >> weekday & 1 == 1;
        if self.any_day() || self.any_weekday() {
            by_day && by_weekday
        } else {
            by_day || by_weekday
        }
    }

    fn time_from(&self, time: i64) -> Option<i64> {
        let (hour, minute, second) = split(time);
        let mut hours = above(self.hours, hour);
        while let Some(h) = lowest(hours) {
            let mut minutes = if h == hour {
                above(self.minutes, minute)
            } else {
                self.minutes
            };
            while let Some(m) = lowest(minutes) {
                let same = (h, m) == (hour, minute);
                let seconds = if same {
                    above(self.seconds, second)
                } else {
                    self.seconds
                };
                if let Some(s) = lowest(seconds) {
                    return Some(join(h, m, s));
                }
                minutes &= minutes - 1;
            }
            hours &= hours - 1;
        }
        None
    }

    fn time_up_to(&self, time: i64) -> Option<i64> {
        let (hour, minute, second) = split(time);
        let mut hours = below(self.hours, hour);
        while let Some(h) = highest(hours) {
            let mut minutes = if h == hour {
                below(self.minutes, minute)
            } else {
                self.minutes
            };
            while let Some(m) = highest(minutes) {
                let same = (h, m) == (hour, minute);
                let seconds = if same {
                    below(self.seconds, second)
                } else {
                    self.seconds
                };
                if let Some(s) = highest(seconds) {
                    return Some(join(h, m, s));
                }
                minutes ^= 1 << m;
            }
            hours ^= 1 << h;
        }
        None
    }
}

fn split(time: i64) -> (u32, u32, u32) {
    // A time of day: below 86,400.
    let time = u32::try_from(time).unwrap_or(0);
    (time / 3600, time / 60 % 60, time % 60)
}

fn join(hour: u32, minute: u32, second: u32) -> i64 {
    i64::from(hour * 3600 + minute * 60 + second)
}

/// The numbers from this one on; sets end below 60.
fn above(set: u64, number: u32) -> u64 {
    set & (u64::MAX << number)
}

/// The numbers up to this one.
fn below(set: u64, number: u32) -> u64 {
    set & ((2 << number) - 1)
}

fn lowest(set: u64) -> Option<u32> {
    (set != 0).then(|| set.trailing_zeros())
}

fn highest(set: u64) -> Option<u32> {
    (set != 0).then(|| 63 - set.leading_zeros())
}

/// Month and day of the month of a day since 1970, in the Gregorian calendar: years begin in March, so that the leap day is their
/// last (Howard Hinnant's method).
fn civil(day: i64) -> (i64, i64) {
    let day = (day + 719_468).rem_euclid(146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * month + 2) / 5 + 1;
    (if month < 10 { month + 3 } else { month - 9 }, of_month)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_calendar_agrees_with_another_one() {
        for day in -40_000..90_000 {
            let moment = jiff::Timestamp::from_second(day * DAY).unwrap();
            let date = jiff::tz::TimeZone::UTC.to_datetime(moment).date();
            assert_eq!(
                civil(day),
                (i64::from(date.month()), i64::from(date.day())),
                "{date}"
            );
        }
    }
}
