//! O-24: the delay before the next attempt stays sane whatever the attempt and the settings.

use std::time::Duration;

use piecework::backoff::Backoff;
use piecework::config::{Config, Span};
use piecework::store::NewJob;
use proptest::prelude::*;

use super::support::field::{Field, probe};

const YEAR: Duration = Duration::from_secs(365 * 86_400);

proptest! {
    #[test]
    fn o_24_a_delay_lies_between_base_and_cap_and_the_jitter(
        base in 0..=YEAR.as_secs() * 1_000_000, max in 0..=YEAR.as_secs() * 1_000_000, factor in 1.0..=1000.0_f64,
        jitter in 0.0..=1.0_f64, attempt in any::<u32>(), random in 0.0..=1.0_f64,
    ) {
        let (base, max) = (Duration::from_micros(base), Duration::from_micros(max));
        let backoff = Backoff { base, factor, max, jitter };
        for attempt in [attempt, attempt % 1000, attempt % 70] {
            let delay = backoff.delay(attempt, random);
            // A float has no more digits.
            let slack = Duration::from_micros(1);
            prop_assert!(delay + slack >= base.min(max), "{delay:?}");
            prop_assert!(delay <= max.mul_f64(1.0 + jitter) + slack, "{delay:?}");
            let later = backoff.delay(attempt.saturating_add(1), random);
            prop_assert!(later + slack >= delay, "{delay:?}, and then {later:?}");
        }
    }

    /// Values that no settings file may hold.
    #[test]
    fn o_24_a_delay_is_never_more_than_the_cap_and_the_jitter_of_any_settings(
        base in any::<u64>(), factor in any::<f64>(), max in any::<u32>(), jitter in any::<f64>(), attempt in any::<u32>(),
        random in any::<f64>(),
    ) {
        let (base, max) = (Duration::from_secs(base), Duration::from_secs(max.into()));
        let delay = Backoff { base, factor, max, jitter }.delay(attempt, random);
        prop_assert!(delay <= max * 2 + Duration::from_secs(1), "{delay:?}");
    }
}

/// Base, factor, cap and jitter.
const SETTINGS: [(Duration, f64, Duration, f64); 5] = [
    (Duration::from_secs(5), 2.0, Duration::from_secs(3600), 0.2),
    (Duration::ZERO, 10.0, YEAR, 1.0),
    (YEAR, 1.0, YEAR, 0.0),
    (YEAR, 10.0, YEAR, 1.0),
    (
        Duration::from_secs(60),
        1000.0,
        Duration::from_secs(90),
        0.5,
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn o_24_at_any_attempt_a_retry_is_due_between_base_and_cap() {
    for (base, factor, max, jitter) in SETTINGS {
        let field = Field::new().await;
        let db = &field.db;
        for attempt in [0, 30, 31, 32, 62, 63, 64, 127, 998, 999] {
            let job = NewJob {
                max_attempts: Some(1000),
                ..probe(r#"{"do":"fail","text":"no","disposition":"retry"}"#)
            };
            let id = db.store.enqueue(&job).await.unwrap();
            sqlx::query("update piecework.job set attempt = $2 where id = $1")
                .bind(id.0)
                .bind(attempt)
                .execute(&db.pool)
                .await
                .unwrap();
        }
        let runner = field
            .start_with(with_retries(field.config(), base, factor, max, jitter))
            .await;
        if base.is_zero() {
            // At once, and again.
            db.until(
                10,
                "select count(*) from piecework.jobs where state = 'failed' or jsonb_array_length(attempts) >= 5",
            )
            .await;
        } else {
            // Its last attempt.
            db.until(
            1,
            "select count(*) from piecework.jobs where state = 'failed' and attempt = 1000 and failure = 'guest_retry'",
        )
        .await;
            db.until(
                9,
                "select count(*) from piecework.job where state = 'pending' and jsonb_array_length(attempts) = 1 and attempt <= 999",
            )
            .await;
            // From the write of the attempt's end on, which is after its start; what the clock says now is later still.
            let wrong = "select count(*) from piecework.job where due_at < (attempts -> 0 ->> 'started_at')::timestamptz + make_interval(secs => $1)
                or due_at > now() + make_interval(secs => $2)";
            let wrong: i64 = sqlx::query_scalar(wrong)
                .bind(base.min(max).as_secs_f64())
                .bind(max.as_secs_f64() * (1.0 + jitter))
                .fetch_one(&db.pool)
                .await
                .unwrap();
            assert_eq!(wrong, 0, "base {base:?}, factor {factor}, at most {max:?}");
        }
        field.end(runner).await;
    }
}

fn with_retries(
    mut config: Config,
    base: Duration,
    factor: f64,
    max: Duration,
    jitter: f64,
) -> Config {
    config.defaults.retry_base = Span(base);
    config.defaults.retry_factor = factor;
    config.defaults.retry_max = Span(max);
    config.defaults.retry_jitter = jitter;
    config
}
