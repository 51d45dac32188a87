//! The words of the domain: jobs, attempts, outcomes. No I/O, no SQL, no Wasm; every other module speaks these types.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;

/// Largest payload, in bytes of JSON text. The SQL functions hold the same number.
pub const MAX_PAYLOAD_BYTES: usize = 1024 * 1024;
/// Longest error text of the host's own, in bytes; what is longer is cut and marked as cut.
const MAX_ERROR_BYTES: usize = 16 * 1024;

/// The id of a job: the primary key of its row, the same for its whole life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct JobId(pub i64);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The fence: a number that is new at every claim. What an attempt writes must match it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClaimToken(pub i64);

/// The id of a runner: new at every start and after every lost lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct RunnerId(pub i64);

impl fmt::Display for RunnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Text that chooses the plugin.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct JobType(Arc<str>);

impl JobType {
    /// How many characters a job type may have; the schema says the same.
    pub const LONGEST: usize = 200;

    /// Whether this can be a job type.
    pub fn fits(text: &str) -> bool {
        !text.is_empty() && text.chars().count() <= Self::LONGEST
    }

    /// The job type as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The same text, shared.
    pub fn shared(&self) -> Arc<str> {
        self.0.clone()
    }
}

impl From<&str> for JobType {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl From<String> for JobType {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for JobType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// 1 first to 4 last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Priority(pub i16);

impl Priority {
    /// All priorities, first to last.
    pub const ALL: [Self; 4] = [Self(1), Self(2), Self(3), Self(4)];
}

/// A moment by the database's clock, in microseconds since 2000-01-01 UTC, as PostgreSQL counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// Before all others; PostgreSQL's `-infinity`.
    pub const MIN: Self = Self(i64::MIN);
    /// Microseconds from 1970 to 2000.
    const EPOCH: i64 = 946_684_800_000_000;

    /// From microseconds since 1970-01-01 UTC.
    pub fn from_unix_micros(micros: i64) -> Self {
        Self(micros.saturating_sub(Self::EPOCH))
    }

    /// Microseconds since 1970-01-01 UTC.
    pub fn unix_micros(self) -> i64 {
        self.0.saturating_add(Self::EPOCH)
    }
}

/// RFC 3339 in UTC with microseconds.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.unix_micros();
        let distance = Duration::from_micros(micros.unsigned_abs());
        let moment = if micros >= 0 {
            UNIX_EPOCH.checked_add(distance)
        } else {
            UNIX_EPOCH.checked_sub(distance)
        };
        let last = UNIX_EPOCH + Duration::from_secs(253_402_300_799);
        match moment {
            Some(moment) if moment >= SystemTime::UNIX_EPOCH && moment <= last => {
                humantime::format_rfc3339_micros(moment).fmt(f)
            }
            _ => write!(f, "{} us since 2000", self.0),
        }
    }
}

/// A job that a runner has claimed: one attempt, ready to run.
#[derive(Clone, Debug)]
pub struct Claimed {
    /// The job.
    pub id: JobId,
    /// The fence of this attempt.
    pub claim: ClaimToken,
    /// Chooses the plugin.
    pub job_type: JobType,
    /// 1 first to 4 last.
    pub priority: Priority,
    /// When the job was due.
    pub due_at: Timestamp,
    /// This attempt, counted from 1.
    pub attempt: u32,
    /// How many attempts the job may use.
    pub max_attempts: u32,
    /// JSON text, digit for digit as PostgreSQL keeps it.
    pub payload: String,
    /// The payload is larger than [`MAX_PAYLOAD_BYTES`] and was left in the database: the job is not to be run.
    pub oversized: bool,
    /// Jobs with the same key run one after another.
    pub ordering_key: Option<String>,
    /// Whom it is for: groups take turns.
    pub group_key: Option<String>,
    /// The job that runs when all jobs of this batch have ended; itself when it is that job.
    pub batch: Option<JobId>,
    /// When the job was enqueued.
    pub enqueued_at: Timestamp,
    /// The job that this one follows from.
    pub parent: Option<JobId>,
    /// The first job of its chain; itself when it follows from none.
    pub root: JobId,
    /// What earlier attempts saved: a JSON object by name.
    pub checkpoint: Option<String>,
}

/// Why an attempt came to nothing. The class decides what happens next; the text is for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureClass {
    /// The wall-clock limit of the attempt passed.
    Timeout,
    /// The computing time was used up.
    CpuLimit,
    /// The fuel budget was used up.
    OutOfFuel,
    /// The guest wanted more memory than it may have.
    OutOfMemory,
    /// The guest trapped: a panic, an exit code, an exhausted stack.
    Trap,
    /// The guest returned something that is no JSON, or too large.
    BadResult,
    /// The payload is larger than any may be; no handler has seen it.
    PayloadTooLarge,
    /// The handler asked for a retry.
    GuestRetry,
    /// The handler gave the job up.
    GuestDiscard,
    /// The handler wants to run later; not a failure, no attempt is used.
    Snoozed,
    /// The process that ran the attempt is gone, or lost its lease.
    HostLost,
    /// The runner stopped and gave the job back; no attempt is used.
    HandedBack,
    /// The job was cancelled while the attempt ran.
    Cancelled,
    /// The host is at fault, never the guest; no attempt is used.
    HostError,
}

impl FailureClass {
    /// The class as it stands in SQL, JSON and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::CpuLimit => "cpu_limit",
            Self::OutOfFuel => "out_of_fuel",
            Self::OutOfMemory => "out_of_memory",
            Self::Trap => "trap",
            Self::BadResult => "bad_result",
            Self::PayloadTooLarge => "payload_too_large",
            Self::GuestRetry => "guest_retry",
            Self::GuestDiscard => "guest_discard",
            Self::Snoozed => "snoozed",
            Self::HostLost => "host_lost",
            Self::HandedBack => "handed_back",
            Self::Cancelled => "cancelled",
            Self::HostError => "host_error",
        }
    }
}

/// What to do with a job whose attempt came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Retry after the plugin's backoff, while attempts are left.
    Backoff,
    /// Retry after this long, while attempts are left.
    After(Duration),
    /// Run again after this long; the attempt is given back.
    Refund(Duration),
    /// Fail now.
    Discard,
}

/// Why an attempt came to nothing, and what to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// For programs.
    pub class: FailureClass,
    /// For people; no NUL.
    pub message: String,
    /// What to do next.
    pub disposition: Disposition,
}

impl Failure {
    /// A failure whose text is made fit to be stored.
    pub fn new(class: FailureClass, message: impl AsRef<str>, disposition: Disposition) -> Self {
        Self::within(MAX_ERROR_BYTES, class, message, disposition)
    }

    /// The same with a text of at most `limit` bytes.
    pub fn within(
        limit: usize,
        class: FailureClass,
        message: impl AsRef<str>,
        disposition: Disposition,
    ) -> Self {
        Self {
            class,
            message: storable(message.as_ref(), limit),
            disposition,
        }
    }
}

/// A job to enqueue when the attempt that asked for it succeeds. Serialises to an element of `piecework.enqueue_many`.
#[derive(Clone, Debug, Serialize)]
pub struct FollowUp {
    /// Chooses the plugin.
    pub job_type: String,
    /// JSON text, checked to be what `jsonb` takes.
    pub payload: Box<serde_json::value::RawValue>,
    /// Seconds from the success of the attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay: Option<u32>,
    /// RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub due_at: Option<String>,
    /// 1 first to 4 last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,
    /// How often it may be tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// At most one pending or running job of the type has this key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unique_key: Option<String>,
    /// Seconds from the success of the attempt during which the key stays taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unique_for: Option<u32>,
    /// Jobs with the same key run one after another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ordering_key: Option<String>,
    /// Whom it is for: groups take turns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_key: Option<String>,
    /// The job that asked for it.
    pub parent: Option<JobId>,
    /// The first job of their chain.
    pub root: Option<JobId>,
}

/// What an attempt used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Wall clock from before instantiation to the end.
    pub run: Duration,
    /// Thread time spent computing.
    pub cpu: Duration,
    /// Fuel, for plugins that have a fuel budget.
    pub fuel: Option<u64>,
    /// Largest sum of the guest's linear memories, in bytes.
    pub peak_memory: u64,
    /// Its HTTP calls, if it made any.
    pub http: Option<HttpUsage>,
}

/// The HTTP calls of an attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HttpUsage {
    /// How many.
    pub calls: u32,
    /// Sent and received, headers and bodies.
    pub bytes: u64,
    /// Their time together.
    pub time: Duration,
}

/// What one attempt came to, with all that is to be written about it.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The result (JSON text, or nothing), or why there is none.
    pub verdict: Result<Option<String>, Failure>,
    /// Committed with a success, dropped otherwise.
    pub follow_ups: Vec<FollowUp>,
    /// What the attempt used.
    pub usage: Usage,
    /// The first and last part of what the guest printed and logged.
    pub output: Option<String>,
    /// The newest progress that the guest reported and nobody took yet: percent and message.
    pub progress: Option<(u8, String)>,
}

/// Makes text fit for a `text` column: no NUL, at most `limit` bytes, marked when cut.
pub fn storable(text: &str, limit: usize) -> String {
    const MARK: &str = " [cut]";
    let clean = |text: &str| {
        if text.contains('\0') {
            text.replace('\0', "\u{fffd}")
        } else {
            text.to_owned()
        }
    };
    if text.len() <= limit {
        let clean = clean(text);
        // A NUL of one byte becomes three.
        if clean.len() <= limit {
            return clean;
        }
        return storable(&clean, limit);
    }
    let mut end = limit.saturating_sub(MARK.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut cut = clean(&text[..end]);
    if cut.len() + MARK.len() > limit {
        let mut end = limit.saturating_sub(MARK.len());
        while !cut.is_char_boundary(end) {
            end -= 1;
        }
        cut.truncate(end);
    }
    cut + MARK
}

/// Checks that text is JSON that `jsonb` will take: well-formed, no NUL escape, no lone surrogate, no number out of range, at
/// most `limit` bytes as given and as `jsonb` prints it.
///
/// # Errors
/// Says what is wrong and where.
pub fn check_json(text: &str, limit: usize) -> Result<(), String> {
    if text.len() > limit {
        return Err(format!("it has {} bytes, the limit is {limit}", text.len()));
    }
    serde_json::from_str::<serde::de::IgnoredAny>(text)
        .map_err(|error| format!("it is not JSON: {error}"))?;
    check_escapes(text)?;
    let printed = printed_bytes(text)?;
    if printed > limit {
        return Err(format!(
            "it has {printed} bytes when its numbers are written out, as PostgreSQL does, the limit is {limit}"
        ));
    }
    Ok(())
}

/// At most how many bytes `jsonb` makes of well-formed JSON when it prints it: numbers without exponents (`1e131071` has
/// 131,072 digits) and a space after each colon and comma. A value of 74 KB came back as a gigabyte, which no answer holds.
///
/// # Errors
/// When a number has more digits than PostgreSQL keeps.
pub fn printed_bytes(text: &str) -> Result<usize, String> {
    let bytes = text.as_bytes();
    let mut printed = text.len();
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => at = after_string(bytes, at),
            b':' | b',' => {
                printed += 1;
                at += 1;
            }
            b'-' | b'0'..=b'9' => {
                let rest = bytes[at..].iter().position(|byte| {
                    !matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9')
                });
                let end = rest.map_or(bytes.len(), |rest| at + rest);
                printed = printed.saturating_add(written_out(&text[at..end])?);
                at = end;
            }
            _ => at += 1,
        }
    }
    Ok(printed)
}

/// The place after a string that begins at `at`.
fn after_string(bytes: &[u8], mut at: usize) -> usize {
    at += 1;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    at
}

/// How much longer a number gets without its exponent, at most.
fn written_out(number: &str) -> Result<usize, String> {
    /// What PostgreSQL's `numeric` keeps before and after the point.
    const DIGITS: (i64, i64) = (131_072, 16_383);
    let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let length = |digits: &str| i64::try_from(digits.len()).unwrap_or(i64::MAX);
    // Longer than any number of digits that is kept: the same as out of range.
    let exponent: i64 = exponent.parse().unwrap_or(1 << 40);
    if length(whole).saturating_add(exponent) > DIGITS.0
        || length(fraction).saturating_sub(exponent) > DIGITS.1
    {
        return Err("it has a number with more digits than PostgreSQL can keep".into());
    }
    Ok(usize::try_from(exponent.unsigned_abs()).unwrap_or(usize::MAX))
}

/// Finds `\u0000` and lone surrogates in well-formed JSON; both are fine by the grammar, and refused by `jsonb`.
fn check_escapes(text: &str) -> Result<(), String> {
    let bytes = text.as_bytes();
    let unit = |at: usize| {
        text.get(at..at + 4)
            .and_then(|digits| u16::from_str_radix(digits, 16).ok())
    };
    let mut at = 0;
    while let Some(step) = bytes
        .get(at..)
        .and_then(|rest| rest.iter().position(|byte| *byte == b'\\'))
    {
        at += step;
        if bytes.get(at + 1) != Some(&b'u') {
            at += 2;
            continue;
        }
        match unit(at + 2) {
            Some(0) => {
                return Err(format!(
                    "it has the character U+0000 (`\\u0000`, at byte {at}), which PostgreSQL cannot keep"
                ));
            }
            Some(0xd800..=0xdbff) => {
                let low = (bytes.get(at + 6..at + 8) == Some(b"\\u"))
                    .then(|| unit(at + 8))
                    .flatten();
                if !matches!(low, Some(0xdc00..=0xdfff)) {
                    return Err(format!(
                        "it has half a surrogate pair (`{}`, at byte {at})",
                        &text[at..at + 6]
                    ));
                }
                at += 12;
            }
            Some(0xdc00..=0xdfff) => {
                return Err(format!(
                    "it has half a surrogate pair (`{}`, at byte {at})",
                    &text[at..at + 6]
                ));
            }
            _ => at += 6,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_that_jsonb_refuses_is_refused_with_its_cause() {
        for (text, cause) in [
            (r#"{"a":"x\u0000y"}"#, "U+0000"),
            (r#""\ud800""#, "surrogate"),
            (r#""\udc00\ud800""#, "surrogate"),
            ("{", "not JSON"),
            ("", "not JSON"),
            ("[1, 1e131073]", "more digits"),
            ("1e-16384", "more digits"),
            ("1e99999999999999999999", "more digits"),
            ("[1e900, 1e900]", "written out"),
        ] {
            assert!(
                check_json(text, 1000).unwrap_err().contains(cause),
                "{text}"
            );
        }
        for text in [
            r#""\\u0000""#,
            r#""\ud83d\ude00""#,
            "18446744073709551616",
            "1.10",
            "null",
        ] {
            check_json(text, 1000).unwrap();
        }
    }

    #[test]
    fn what_jsonb_prints_is_never_longer_than_reckoned() {
        for (text, printed) in [
            (r#"{"a":[1,2]}"#, r#"{"a": [1, 2]}"#),
            ("1e3", "1000"),
            ("-1.5E-2", "-0.015"),
            (r#"{"1e9,:":"\"1e9"}"#, r#"{"1e9,:": "\"1e9"}"#),
        ] {
            let reckoned = printed_bytes(text).unwrap();
            assert!(
                reckoned >= printed.len() && reckoned < printed.len() + 10,
                "{text}: {reckoned}"
            );
        }
    }

    #[test]
    fn text_is_cut_at_a_character_and_marked() {
        assert_eq!(storable("short", 10), "short");
        assert_eq!(storable("a\0b", 10), "a\u{fffd}b");
        let cut = storable(&"ä".repeat(100), 21);
        assert!(cut.ends_with("[cut]") && cut.len() <= 21, "{cut}");
        assert!(storable(&"\0".repeat(100), 21).len() <= 21);
    }

    #[test]
    fn moments_print_as_rfc_3339() {
        assert_eq!(Timestamp(0).to_string(), "2000-01-01T00:00:00.000000Z");
        assert_eq!(
            Timestamp(1_500_000).to_string(),
            "2000-01-01T00:00:01.500000Z"
        );
        assert!(!Timestamp::MIN.to_string().is_empty());
        assert!(!Timestamp(i64::MAX).to_string().is_empty());
    }
}
