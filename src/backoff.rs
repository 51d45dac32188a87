//! How long a retry waits: exponential with jitter, capped before any arithmetic, so that attempt 1,000 is as sane as
//! attempt 2.

use std::time::Duration;

/// The retry delays of a plugin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// Delay after the first attempt.
    pub base: Duration,
    /// What each further attempt multiplies it by; at least 1.
    pub factor: f64,
    /// No delay is longer than this, jitter aside.
    pub max: Duration,
    /// Share of the delay that is added at random, 0 to 1: it keeps jobs that failed together from coming back together.
    pub jitter: f64,
}

impl Backoff {
    /// The delay after attempt `attempt` (counted from 1), with `random` in 0 to 1 as the jitter's dice.
    /// Between the base (or the cap, when that is smaller) and the cap plus jitter.
    pub fn delay(&self, attempt: u32, random: f64) -> Duration {
        let cap = self.max.as_secs_f64();
        // 64 doublings of a nanosecond are 584 years: beyond that the exponent changes nothing.
        let exponent = attempt.saturating_sub(1).min(64);
        let grown = self.base.as_secs_f64()
            * self
                .factor
                .max(1.0)
                .powi(i32::try_from(exponent).unwrap_or(64));
        // `min` returns the cap for an infinite or undefined product too.
        let delay = grown.min(cap);
        let jittered = delay * (1.0 + self.jitter.clamp(0.0, 1.0) * random.clamp(0.0, 1.0));
        Duration::try_from_secs_f64(jittered).unwrap_or(self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_stay_between_base_and_cap_at_any_attempt() {
        let day = Duration::from_secs(86_400);
        for base in [Duration::ZERO, Duration::from_secs(1), day * 365] {
            for factor in [0.0, 1.0, 2.0, 10.0, f64::MAX] {
                let backoff = Backoff {
                    base,
                    factor,
                    max: day,
                    jitter: 0.2,
                };
                for attempt in [0, 1, 2, 30, 31, 32, 62, 63, 64, 127, 998, 1000, u32::MAX] {
                    for random in [0.0, 0.5, 1.0] {
                        let delay = backoff.delay(attempt, random);
                        assert!(
                            delay >= base.min(day) && delay <= day.mul_f64(1.2),
                            "{base:?} {factor} {attempt}: {delay:?}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn delays_grow_by_the_factor() {
        let backoff = Backoff {
            base: Duration::from_secs(1),
            factor: 3.0,
            max: Duration::from_secs(60),
            jitter: 0.0,
        };
        let delays: Vec<_> = (1..=5)
            .map(|attempt| backoff.delay(attempt, 0.0).as_secs())
            .collect();
        assert_eq!(delays, [1, 3, 9, 27, 60]);
    }
}
