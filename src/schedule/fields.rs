//! The text of a cron expression to sets of numbers.

/// What an expression names: bit n stands for the number n.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fields {
    pub(super) seconds: u64,
    pub(super) minutes: u64,
    pub(super) hours: u64,
    pub(super) days: u64,
    pub(super) months: u64,
    /// 0 is Sunday.
    pub(super) weekdays: u64,
}

const MONTHS: [&str; 12] = [
    "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC",
];
const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

/// Short forms.
const NICKNAMES: [(&str, &str); 7] = [
    ("@hourly", "0 * * * *"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@weekly", "0 0 * * 0"),
    ("@monthly", "0 0 1 * *"),
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
];

/// One field: its name for people, its range, names for its numbers.
struct Kind {
    name: &'static str,
    low: u32,
    high: u32,
    /// The number of the first name, and the names.
    names: (u32, &'static [&'static str]),
}

const KINDS: [Kind; 6] = [
    kind("second", 0, 59, (0, &[])),
    kind("minute", 0, 59, (0, &[])),
    kind("hour", 0, 23, (0, &[])),
    kind("day of month", 1, 31, (0, &[])),
    kind("month", 1, 12, (1, &MONTHS)),
    // 7 is Sunday too.
    kind("day of week", 0, 7, (0, &WEEKDAYS)),
];

const fn kind(
    name: &'static str,
    low: u32,
    high: u32,
    names: (u32, &'static [&'static str]),
) -> Kind {
    Kind {
        name,
        low,
        high,
        names,
    }
}

impl Fields {
    /// Reads an expression. The error says what is wrong.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if let Some(name) = text.strip_prefix('@') {
            let known = NICKNAMES
                .iter()
                .find(|(known, _)| known[1..].eq_ignore_ascii_case(name));
            let Some((_, full)) = known else {
                let known: Vec<_> = NICKNAMES.iter().map(|(known, _)| *known).collect();
                return Err(format!("the short forms are {}", known.join(", ")));
            };
            return Self::parse(full);
        }
        let parts: Vec<&str> = text.split_whitespace().collect();
        let parts: Vec<&str> = match parts.len() {
            5 => ["0"].into_iter().chain(parts).collect(),
            6 => parts,
            count => {
                return Err(format!(
                    "it has {count} fields, it needs five (minute, hour, day of month, month, day of week), or six with the second first"
                ));
            }
        };
        let mut sets = [0_u64; 6];
        for ((set, kind), part) in sets.iter_mut().zip(&KINDS).zip(parts) {
            for item in part.split(',') {
                *set |= kind.read(item)?;
            }
        }
        let [seconds, minutes, hours, days, months, weekdays] = sets;
        Ok(Self {
            seconds,
            minutes,
            hours,
            days,
            months,
            weekdays: (weekdays | weekdays >> 7) & 0x7f,
        })
    }

    /// Why no date is ever like that, if none is. Needs no search: with any day of the week given every month has such a day, and
    /// without one a day of the month must exist in some month.
    pub(super) fn impossible(&self) -> Option<String> {
        let longest = |month: u32| match month {
            2 => 29,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        let earliest = self.days.trailing_zeros();
        let fits =
            (1..=12).any(|month| self.months >> month & 1 == 1 && earliest <= longest(month));
        (!fits && self.any_weekday())
            .then(|| format!("no month that it names has a day {earliest}"))
    }

    /// A rhythm, as opposed to fixed times of the day: no hour is left out.
    pub(super) fn is_rhythm(&self) -> bool {
        self.hours == (1 << 24) - 1
    }

    pub(super) fn any_day(&self) -> bool {
        self.days == (1 << 32) - 2
    }

    pub(super) fn any_weekday(&self) -> bool {
        self.weekdays == 0x7f
    }
}

impl Kind {
    /// One item of a list: `*`, `5`, `1-5`, each perhaps with `/2`.
    fn read(&self, item: &str) -> Result<u64, String> {
        let (range, step) = match item.split_once('/') {
            Some((range, step)) => (range, Some(step)),
            None => (item, None),
        };
        // `*` for the day of week is Sunday to Saturday, once.
        let top = if self.high == 7 { 6 } else { self.high };
        let (first, last) = if range == "*" {
            (self.low, top)
        } else if let Some((first, last)) = range.split_once('-') {
            let (first, mut last) = (self.number(first)?, self.number(last)?);
            if self.high == 7 && last == 0 && first > 0 {
                last = 7;
            }
            (first, last)
        } else {
            let first = self.number(range)?;
            (
                first,
                if step.is_some() {
                    top.max(first)
                } else {
                    first
                },
            )
        };
        if first > last {
            return Err(format!(
                "the range `{range}` of the {} runs backwards: write it as two, such as \"{first}-{top},{}-{last}\"",
                self.name, self.low
            ));
        }
        let span = top - self.low + 1;
        let step = match step {
            None => 1,
            Some(step) => digits(step)
                .filter(|step| (1..=span).contains(step))
                .ok_or_else(|| format!("`{step}` is no step for the {}: 1 to {span}", self.name))?,
        };
        let step = usize::try_from(step).unwrap_or(1);
        Ok((first..=last)
            .step_by(step)
            .fold(0, |set, number| set | 1 << number))
    }

    fn number(&self, text: &str) -> Result<u32, String> {
        let (from, names) = self.names;
        let named = names
            .iter()
            .zip(from..)
            .find(|(name, _)| name.eq_ignore_ascii_case(text))
            .map(|(_, number)| number);
        named
            .or_else(|| digits(text))
            .filter(|number| (self.low..=self.high).contains(number))
            .ok_or_else(|| {
                let names = if names.is_empty() {
                    String::new()
                } else {
                    format!(" or {} to {}", names[0], names[names.len() - 1])
                };
                format!(
                    "`{text}` is no {}: {} to {}{names}, *, lists, ranges and steps",
                    self.name, self.low, self.high
                )
            })
    }
}

/// Digits only: no sign, no spaces.
fn digits(text: &str) -> Option<u32> {
    (!text.is_empty() && text.len() <= 4 && text.bytes().all(|byte| byte.is_ascii_digit()))
        .then(|| text.parse().ok())
        .flatten()
}
