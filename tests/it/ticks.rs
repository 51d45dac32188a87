//! When schedules tick: days on which clocks change, dates that are rare or never come, and that no expression makes a search long.

use std::time::{Duration, Instant};

use piecework::schedule::{END, Error, FIRST, Spec, utc};
use proptest::prelude::*;
use proptest::test_runner::Config;

fn moment(text: &str) -> i64 {
    text.parse::<jiff::Timestamp>().unwrap().as_second()
}

/// The first ticks from a moment on, in local time.
fn ticks(text: &str, zone: &str, from: &str, count: usize) -> Vec<String> {
    let spec = Spec::cron(text, zone).unwrap();
    let mut at = moment(from) - 1;
    (0..count)
        .map(|_| {
            at = spec.next(at).unwrap();
            spec.local(at)
        })
        .collect()
}

/// All ticks in `[from, to)`.
fn between(spec: &Spec, from: &str, to: &str) -> Vec<i64> {
    let end = moment(to);
    std::iter::successors(spec.next(moment(from) - 1), |at| spec.next(*at))
        .take_while(|at| *at < end)
        .collect()
}

/// The calendar days of 2026 in Berlin, with their beginnings and ends.
fn berlin_2026() -> impl Iterator<Item = (i64, i64)> {
    let day = jiff::civil::date(2026, 1, 1);
    let begin = move |n: i64| {
        let day = day.checked_add(jiff::Span::new().days(n)).unwrap();
        let begin = day.in_tz("Europe/Berlin").unwrap();
        begin.timestamp().as_second()
    };
    (0..365).map(move |n| (begin(n), begin(n + 1)))
}

#[test]
fn o_20_a_fixed_time_ticks_once_on_every_calendar_day() {
    let spec = Spec::cron("30 2 * * *", "Europe/Berlin").unwrap();
    for (begin, end) in berlin_2026() {
        let tick = spec.next(begin - 1).unwrap();
        assert!(tick < end, "none on the day from {}", utc(begin));
        assert!(spec.next(tick).unwrap() >= end, "two from {}", utc(begin));
    }
    // The next 200, around both days.
    for from in ["2026-02-01T00:00:00Z", "2026-08-01T00:00:00Z"] {
        let found = ticks("30 2 * * *", "Europe/Berlin", from, 200);
        let days: std::collections::BTreeSet<_> =
            found.iter().map(|tick| tick[..10].to_owned()).collect();
        assert_eq!(days.len(), 200);
    }
    assert_eq!(
        ticks("30 2 * * *", "Europe/Berlin", "2026-03-28T00:00:00Z", 3),
        [
            "2026-03-28T02:30:00+01:00",
            "2026-03-29T03:00:00+02:00",
            "2026-03-30T02:30:00+02:00"
        ]
    );
    assert_eq!(
        ticks("30 2 * * *", "Europe/Berlin", "2026-10-24T00:00:00Z", 3),
        [
            "2026-10-24T02:30:00+02:00",
            "2026-10-25T02:30:00+02:00",
            "2026-10-26T02:30:00+01:00"
        ]
    );
}

#[test]
fn o_20_a_rhythm_goes_on_in_real_time() {
    for (text, apart) in [("*/15 * * * *", 900), ("*/15 * * * * *", 15)] {
        let spec = Spec::cron(text, "Europe/Berlin").unwrap();
        for (from, to, hours) in [
            ("2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z", 23),
            ("2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z", 25),
        ] {
            let found = between(&spec, from, to);
            assert_eq!(found.len(), hours * 3600 / apart, "{text} from {from}");
            let apart = i64::try_from(apart).unwrap();
            assert!(found.windows(2).all(|pair| pair[1] - pair[0] == apart));
        }
    }
    let quarters = Spec::cron("*/15 * * * *", "Europe/Berlin").unwrap();
    let spring = between(&quarters, "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z");
    let autumn = between(&quarters, "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z");
    assert_eq!((spring.len(), autumn.len()), (92, 100));
}

#[test]
fn o_20_hours_that_are_named_are_fixed_times_whatever_their_minutes() {
    // Four quarters of an hour that is missing are one moment.
    assert_eq!(
        ticks("*/15 2 * * *", "Europe/Berlin", "2026-03-28T23:00:00Z", 2),
        ["2026-03-29T03:00:00+02:00", "2026-03-30T02:00:00+02:00"]
    );
    assert_eq!(
        ticks("*/30 2 * * *", "Europe/Berlin", "2026-10-24T22:00:00Z", 3),
        [
            "2026-10-25T02:00:00+02:00",
            "2026-10-25T02:30:00+02:00",
            "2026-10-26T02:00:00+01:00"
        ]
    );
    assert_eq!(
        ticks("0 */2 * * *", "Europe/Berlin", "2026-03-29T00:00:00Z", 2),
        ["2026-03-29T03:00:00+02:00", "2026-03-29T04:00:00+02:00"]
    );
    // Where midnight is missing, and where clocks are moved by half an hour.
    assert_eq!(
        ticks("0 0 * * *", "Africa/Cairo", "2026-04-23T12:00:00Z", 2),
        ["2026-04-24T01:00:00+03:00", "2026-04-25T00:00:00+03:00"]
    );
    assert_eq!(
        ticks(
            "15 2 * * *",
            "Australia/Lord_Howe",
            "2026-10-03T12:00:00Z",
            2
        ),
        ["2026-10-04T02:30:00+11:00", "2026-10-05T02:15:00+11:00"]
    );
    assert_eq!(
        ticks("0 0 12 * * *", "utc", "2026-10-03T12:00:00Z", 1),
        ["2026-10-03T12:00:00+00:00"]
    );
}

#[test]
fn o_22_what_can_never_tick_is_refused_at_once() {
    for (text, day) in [
        ("0 0 30 2 *", 30),
        ("0 0 31 4 *", 31),
        ("0 0 31 2,4,6 *", 31),
        ("0 0 0 30-31 FEB *", 30),
    ] {
        let begun = Instant::now();
        let error = Spec::cron(text, "Europe/Berlin").unwrap_err();
        assert!(begun.elapsed() < Duration::from_millis(100));
        assert_eq!(
            error.to_string(),
            format!(
                "the cron expression `{text}` can never tick: no month that it names has a day {day}"
            )
        );
    }
}

#[test]
fn o_22_what_is_rare_is_honoured() {
    let begun = Instant::now();
    assert_eq!(
        ticks("0 0 29 2 *", "UTC", "2026-01-01T00:00:00Z", 2),
        ["2028-02-29T00:00:00+00:00", "2032-02-29T00:00:00+00:00"]
    );
    assert_eq!(
        ticks("0 0 29 2 *", "UTC", "2096-03-01T00:00:00Z", 1),
        ["2104-02-29T00:00:00+00:00"]
    );
    assert_eq!(
        ticks("* * 29 2 *", "Europe/Berlin", "2096-03-01T00:00:00Z", 1),
        ["2104-02-29T00:00:00+01:00"]
    );
    let rare = Spec::cron("0 0 29 2 *", "America/New_York").unwrap();
    assert_eq!(
        rare.local(rare.previous(moment("2104-02-29T05:00:00Z")).unwrap()),
        "2096-02-29T00:00:00-05:00"
    );
    // Day of the month and of the week: either will do.
    assert_eq!(
        ticks("0 9 29 2 1", "UTC", "2028-02-20T00:00:00Z", 4),
        [
            "2028-02-21T09:00:00+00:00",
            "2028-02-28T09:00:00+00:00",
            "2028-02-29T09:00:00+00:00",
            "2029-02-05T09:00:00+00:00"
        ]
    );
    assert!(begun.elapsed() < Duration::from_millis(500), "{begun:?}");
    // Nothing lies beyond the times that jobs can have.
    assert_eq!(rare.next(END), None);
    assert_eq!(rare.previous(FIRST), None);
}

#[test]
fn expressions_are_read_as_people_mean_them() {
    let same = |one: &str, other: &str| {
        let (one_spec, other_spec) = (
            Spec::cron(one, "UTC").unwrap(),
            Spec::cron(other, "UTC").unwrap(),
        );
        let mut at = moment("2026-01-01T00:00:00Z");
        for _ in 0..50 {
            let next = one_spec.next(at);
            assert_eq!(next, other_spec.next(at), "{one} and {other}");
            at = next.unwrap();
        }
    };
    same("0 9 * * MON-FRI", "0 0 9 * * 1,2,3,4,5");
    same("0 9 * * 7", "0 9 * * sun");
    same("0 9 * * FRI-SUN", "0 9 * * 0,5,6");
    same("0 9 * * 5-7", "0 9 * * FRI,SAT,SUN");
    same("@daily", "0 0 * * *");
    same(" @Hourly", "0 * * * *");
    same("5/20 * * * *", "5,25,45 * * * *");
    same("0 0 1 jan,Jul *", "0 0 1 1,7 *");
    same("0 0-23 * * *", "0 * * * *");
    same("10-30/10 * * * *", "10,20,30 * * * *");
}

#[test]
fn bad_specs_are_refused_with_the_reason() {
    let why = |text: &str| Spec::cron(text, "UTC").unwrap_err().to_string();
    for (text, says) in [
        ("", "it has 0 fields, it needs five"),
        ("* * * *", "it has 4 fields"),
        ("* * * * * * *", "it has 7 fields"),
        ("60 * * * *", "`60` is no minute: 0 to 59"),
        ("* 24 * * *", "`24` is no hour: 0 to 23"),
        ("* * 0 * *", "`0` is no day of month: 1 to 31"),
        ("* * * 13 *", "`13` is no month: 1 to 12 or JAN to DEC"),
        ("* * * * 8", "`8` is no day of week: 0 to 7 or SUN to SAT"),
        ("*/0 * * * *", "`0` is no step for the minute: 1 to 60"),
        ("*/90 * * * *", "`90` is no step for the minute: 1 to 60"),
        (
            "0 22-2 * * *",
            "the range `22-2` of the hour runs backwards: write it as two, such as \"22-23,0-2\"",
        ),
        ("+1 * * * *", "`+1` is no minute"),
        ("1, * * * *", "`` is no minute"),
        ("0 0 L * *", "`L` is no day of month"),
        ("0 0 ? * 1", "`?` is no day of month"),
        ("@often", "the short forms are @hourly, "),
    ] {
        let error = why(text);
        assert!(error.contains(says), "{text}: {error}");
        assert!(error.contains(&format!("`{text}`")), "{error}");
    }
    assert!(why(&"1,".repeat(400)).contains("more than 500 bytes"));
    assert_eq!(
        Spec::cron("* * * * *", "Europe/Berln").unwrap_err(),
        Error::Zone("Europe/Berln".into())
    );
    for millis in [0, 999, 1500, 366 * 86_400_000] {
        assert!(Spec::every(Duration::from_millis(millis)).is_err());
    }
}

#[test]
fn intervals_are_anchored_so_that_all_runners_agree() {
    let spec = Spec::every(Duration::from_secs(90)).unwrap();
    let from = moment("2026-01-01T00:00:00Z");
    let tick = spec.next(from).unwrap();
    assert_eq!((tick - FIRST) % 90, 0);
    assert!(tick > from && tick - from <= 90);
    assert_eq!(spec.next(tick), Some(tick + 90));
    assert_eq!(spec.previous(tick), Some(tick - 90));
    assert_eq!(spec.previous(tick + 1), Some(tick));
    assert_eq!(spec.next(i64::MIN), Some(FIRST));
    assert_eq!(spec.next(i64::MAX - 1), None);
    assert_eq!(spec.previous(i64::MAX), Some(END - 90));
}

const ZONES: [&str; 7] = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Africa/Casablanca",
    // Without a day: 2011-12-30.
    "Pacific/Apia",
    "Asia/Kathmandu",
];

/// One field: a list of one to three items.
fn field(low: u32, high: u32) -> impl Strategy<Value = String> {
    let item = prop_oneof![
        4 => Just("*".to_owned()),
        4 => (low..=high).prop_map(|n| n.to_string()),
        2 => (low..=high, low..=high).prop_map(|(a, b)| format!("{}-{}", a.min(b), a.max(b))),
        2 => (1..=high).prop_map(|step| format!("*/{step}")),
        1 => (low..=high, 1..=high).prop_map(|(a, step)| format!("{a}/{step}")),
    ];
    proptest::collection::vec(item, 1..=3).prop_map(|items| items.join(","))
}

fn expression() -> impl Strategy<Value = String> {
    (
        prop_oneof![3 => Just("0".to_owned()), 1 => field(0, 59)],
        field(0, 59),
        field(0, 23),
        field(1, 31),
        field(1, 12),
        field(0, 6),
    )
        .prop_map(|(s, m, h, d, mo, w)| format!("{s} {m} {h} {d} {mo} {w}"))
}

/// The time fields of an expression as the reference reads them: the numbers one by one.
fn names(field: &str, high: u32, number: u32) -> bool {
    field.split(',').any(|item| {
        let (range, step) = item.split_once('/').unwrap_or((item, "1"));
        let (first, last) = match range {
            "*" => (if high == 31 || high == 12 { 1 } else { 0 }, high),
            range => match range.split_once('-') {
                Some((a, b)) => (a.parse().unwrap(), b.parse().unwrap()),
                None if item.contains('/') => (range.parse().unwrap(), high),
                None => (range.parse().unwrap(), range.parse().unwrap()),
            },
        };
        (first..=last).contains(&number)
            && (number - first).is_multiple_of(step.parse::<u32>().unwrap())
    })
}

/// An expression as the reference reads it: number by number.
struct Named {
    /// Second, minute, hour, day, month, weekday.
    fields: [Vec<bool>; 6],
    either: bool,
}

impl Named {
    fn new(text: &str) -> Self {
        let tops = [59, 59, 23, 31, 12, 6];
        let texts: Vec<&str> = text.split(' ').collect();
        let fields = std::array::from_fn(|place| {
            (0..=tops[place])
                .map(|number| names(texts[place], tops[place], number))
                .collect()
        });
        let fields: [Vec<bool>; 6] = fields;
        let either =
            !fields[3][1..].iter().all(|named| *named) && !fields[5].iter().all(|named| *named);
        Self { fields, either }
    }

    fn every_hour(&self) -> bool {
        self.fields[2].iter().all(|named| *named)
    }

    /// The moments or local times of a range whose seconds are named: the others need no look.
    fn candidates(&self, from: i64, to: i64) -> impl Iterator<Item = i64> {
        (from..to).filter(|at| self.fields[0][usize::try_from(at.rem_euclid(60)).unwrap()])
    }

    /// Whether a local time matches, computed another way than the search does.
    fn matches(&self, at: &jiff::civil::DateTime) -> bool {
        let named = |field: usize, number: i8| self.fields[field][usize::try_from(number).unwrap()];
        let day = named(3, at.day());
        let weekday = named(5, at.weekday().to_sunday_zero_offset());
        named(0, at.second())
            && named(1, at.minute())
            && named(2, at.hour())
            && named(4, at.month())
            && if self.either {
                day || weekday
            } else {
                day && weekday
            }
    }
}

proptest! {
    #![proptest_config(Config { cases: 400, failure_persistence: None, ..Config::default() })]

    #[test]
    fn next_and_previous_are_each_others_inverse(
        text in expression(), zone in 0..ZONES.len(), from in FIRST..END - 20 * 366 * 86_400,
    ) {
        let begun = Instant::now();
        let spec = match Spec::cron(&text, ZONES[zone]) {
            Ok(spec) => spec,
            Err(error) => {
                prop_assert!(matches!(error, Error::Impossible { .. }), "{error}");
                return Ok(());
            }
        };
        let first = spec.next(from).unwrap();
        let second = spec.next(first).unwrap();
        prop_assert!(from < first && first < second);
        prop_assert_eq!(spec.previous(second), Some(first));
        prop_assert_eq!(spec.previous(second + 1), Some(second));
        prop_assert_eq!(spec.next(first - 1), Some(first));
        if let Some(before) = spec.previous(first) {
            prop_assert!(before <= from);
            prop_assert_eq!(spec.next(before), Some(first));
        }
        // Never hangs, on a machine that does other things too.
        prop_assert!(begun.elapsed() < Duration::from_secs(2));
    }

    #[test]
    fn no_text_makes_it_fail_otherwise_than_by_saying_so(text in "\\PC{0,40}|[0-9*/,@A-Z -]{0,60}") {
        if let Ok(spec) = Spec::cron(&text, "Europe/Berlin") {
            let tick = spec.next(FIRST).unwrap();
            prop_assert!(tick > FIRST && tick < END);
        }
    }
}

proptest! {
    // Each case looks at every second of three days.
    #![proptest_config(Config { cases: 250, failure_persistence: None, ..Config::default() })]

    #[test]
    fn ticks_are_what_the_rules_say(
        text in expression(), zone in 1..ZONES.len(), change in 0..40_usize, hours in -10..3_i64,
    ) {
        let Ok(spec) = Spec::cron(&text, ZONES[zone]) else { return Ok(()) };
        let named = Named::new(&text);
        let zone = jiff::tz::TimeZone::get(ZONES[zone]).unwrap();
        let second = |at| jiff::Timestamp::from_second(at).unwrap();
        // Around some change of the clock, where there is one.
        let begin = second(moment("2008-01-01T00:00:00Z"));
        let near = zone.following(begin).nth(change).map_or(begin, |change| change.timestamp());
        let from = near.as_second() + hours * 3600;
        let to = from + 12 * 3600;
        let expected: std::collections::BTreeSet<i64> = if named.every_hour() {
            named
                .candidates(from, to)
                .filter(|at| named.matches(&zone.to_datetime(second(*at))))
                .collect()
        } else {
            // Every local time of these days and those around, at its one moment.
            named
                .candidates(from - 26 * 3600, to + 26 * 3600)
                .map(|local| jiff::tz::Offset::UTC.to_datetime(second(local)))
                .filter(|civil| named.matches(civil))
                .map(|civil| {
                    let ambiguous = zone.clone().to_ambiguous_zoned_datetime(civil);
                    let in_gap = matches!(ambiguous.offset(), jiff::tz::AmbiguousOffset::Gap { .. });
                    if in_gap {
                        let late = ambiguous.later().unwrap().timestamp();
                        let after = late + jiff::SignedDuration::from_secs(1);
                        zone.preceding(after).next().unwrap().timestamp().as_second()
                    } else {
                        ambiguous.earlier().unwrap().timestamp().as_second()
                    }
                })
                .filter(|at| (from..to).contains(at))
                .collect()
        };
        let found: Vec<i64> = std::iter::successors(spec.next(from - 1), |at| spec.next(*at))
            .take_while(|at| *at < to)
            .collect();
        let mut backwards: Vec<i64> = std::iter::successors(spec.previous(to), |at| spec.previous(*at))
            .take_while(|at| *at >= from)
            .collect();
        backwards.reverse();
        let expected: Vec<i64> = expected.into_iter().collect();
        prop_assert_eq!(&found, &expected);
        prop_assert_eq!(&backwards, &expected);
        // From any moment in between too, such as within an hour that comes twice.
        for at in (from..to).step_by(1237) {
            prop_assert_eq!(spec.next(at).filter(|at| *at < to), expected.iter().copied().find(|tick| *tick > at));
            prop_assert_eq!(
                spec.previous(at).filter(|at| *at >= from),
                expected.iter().copied().rfind(|tick| *tick < at)
            );
        }
    }
}
