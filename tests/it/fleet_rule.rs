//! The rule by which canaries end, simulated: how often it is wrong, and how soon it is right. The figures of docs/plugins.md are from
//! longer runs of the same; here the seed is fixed and the runs are few.

use super::support::db::Db;

/// Done and failed attempts.
#[derive(Clone, Copy, Default)]
struct Side {
    attempts: f64,
    failed: f64,
}

const Z: f64 = 3.5;

/// The ends of the Wilson interval, as `piecework.failure_interval` computes them.
fn interval(side: Side) -> (f64, f64) {
    let (n, f, z2) = (side.attempts, side.failed, Z * Z);
    let spread = if n > 0.0 { f * (n - f) / n } else { 0.0 };
    let middle = (f + z2 / 2.0) / (n + z2);
    let width = Z / (n + z2) * (spread + z2 / 4.0).sqrt();
    ((middle - width).max(0.0), (middle + width).min(1.0))
}

fn worse(canary: Side, stable: Side) -> bool {
    canary.failed >= 5.0 && interval(canary).0 > interval(stable).1
}

/// Attempts of the canary until it is rolled back, looked at after every tenth of all attempts.
fn ends(
    random: &mut fastrand::Rng,
    share: f64,
    canary_fails: f64,
    stable_fails: f64,
    most: u32,
) -> Option<f64> {
    let (mut canary, mut stable) = (Side::default(), Side::default());
    for n in 1..=most {
        let (side, fails) = if random.f64() < share {
            (&mut canary, canary_fails)
        } else {
            (&mut stable, stable_fails)
        };
        side.attempts += 1.0;
        side.failed += f64::from(u8::from(random.f64() < fails));
        if n % 10 == 0 && worse(canary, stable) {
            return Some(canary.attempts);
        }
    }
    None
}

#[test]
fn a_canary_as_good_as_the_stable_version_stays() {
    let mut random = fastrand::Rng::with_seed(1);
    let mut wrong = 0;
    for share in [0.01, 0.1] {
        for rate in [0.0, 0.01, 0.1, 0.5] {
            for _ in 0..50 {
                wrong += u32::from(ends(&mut random, share, rate, rate, 100_000).is_some());
            }
        }
    }
    // 400 runs; less than 1 % is what the rule promises.
    assert!(wrong < 4, "{wrong} of 400 were rolled back");
}

#[test]
fn a_canary_that_is_worse_ends_soon() {
    let mut random = fastrand::Rng::with_seed(1);
    // Share, failure rates, and attempts of the canary that are enough for half of all.
    for (share, canary, stable, enough) in [
        (0.1, 1.0, 0.01, 7.0),
        (0.5, 1.0, 0.01, 20.0),
        (0.1, 0.2, 0.01, 50.0),
        (0.1, 0.03, 0.01, 1000.0),
    ] {
        let mut taken: Vec<f64> = (0..101)
            .map(|_| ends(&mut random, share, canary, stable, 1_000_000).unwrap())
            .collect();
        taken.sort_unstable_by(f64::total_cmp);
        assert!(taken[50] <= enough, "{canary} {stable}: {}", taken[50]);
    }
}

/// What is simulated is what the database does.
#[tokio::test]
async fn the_interval_of_the_database_is_the_one_that_is_simulated() {
    let db = Db::new().await;
    for (failed, attempts) in [(0, 0), (0, 1), (1, 1), (5, 5), (3, 1000), (50_000, 100_000)] {
        let (low, high): (f64, f64) =
            sqlx::query_as("select low, high from piecework.failure_interval($1, $2, $3)")
                .bind(i64::from(failed))
                .bind(i64::from(attempts))
                .bind(Z)
                .fetch_one(&db.pool)
                .await
                .unwrap();
        let side = Side {
            attempts: f64::from(attempts),
            failed: f64::from(failed),
        };
        let (expected_low, expected_high) = interval(side);
        assert!(
            (low - expected_low).abs() < 1e-9 && (high - expected_high).abs() < 1e-9,
            "{failed} of {attempts}: {low} {high}"
        );
    }
    db.drop().await;
}
