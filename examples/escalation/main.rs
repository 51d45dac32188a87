//! Escalation: pages that are due at a time, steps that schedule the next, and an acknowledgement that ends the ladder wherever it is.
//! This program is the application, and plays the paging service; the handler is in `handlers/`, the runners are `piecework run`.
//! README.md says what is to be seen.
#![expect(clippy::print_stdout, reason = "it is told what happens")]

#[path = "../support/mod.rs"]
mod support;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Parser;
use serde_json::json;
use sqlx::postgres::PgPool;

use support::fleet::Fleet;
use support::service::{Reply, Request, Service, serve};
use support::stage::{Common, Stage};
use support::{claim, ending};

/// How long a call that is being made when its alert is acknowledged may go on: what the host promises.
const LAST_CALLS: Duration = Duration::from_secs(2);
/// `fleet_concurrency` in runner.toml.
const AT_ONCE: i64 = 12;
/// A transaction that is open for so long, and asks the database nothing, waits for something outside.
const HELD: &str = "1 second";

/// Raise alerts, acknowledge some, kill runners, and check whom the service has paged
#[derive(Debug, Parser)]
struct Arguments {
    /// How many alerts are raised one after the other; as many again are raised at one moment
    #[arg(long, default_value_t = 100)]
    alerts: u32,
    /// Over how many seconds they are raised
    #[arg(long, default_value_t = 8.0)]
    seconds: f64,
    #[command(flatten)]
    common: Common,
}

/// The paging service, and its book.
#[derive(Default)]
struct Pager(Mutex<Book>);

#[derive(Default)]
struct Book {
    requests: u32,
    misbehaved: u32,
    repeated: u32,
    open: usize,
    most_open: usize,
    keys: HashSet<String>,
    /// When each step of each alert was paged, once for each page that went out.
    pages: HashMap<(i64, i64), Vec<Instant>>,
    /// When a request about an alert came last.
    last: HashMap<i64, Instant>,
}

impl Pager {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Service for Pager {
    fn reply(&self, request: &Request) -> Reply {
        let now = Instant::now();
        let mut book = self.book();
        let number = |name: &str| request.body[name].as_i64().unwrap_or(-1);
        let (alert, step) = (number("alert"), number("step"));
        book.requests += 1;
        book.open += 1;
        book.most_open = book.most_open.max(book.open);
        book.last.insert(alert, now);
        let dice = fastrand::u32(..100);
        // Refused before anybody was paged.
        if dice < 12 {
            book.misbehaved += 1;
            return match dice {
                0..5 => Reply::Answer(Duration::from_millis(20), 500, ""),
                5..9 => Reply::Hang,
                _ => Reply::Break,
            };
        }
        if book.keys.insert(request.idempotency_key.clone()) {
            book.pages.entry((alert, step)).or_default().push(now);
        } else {
            book.repeated += 1;
        }
        // Paged, and the caller does not learn of it.
        if dice < 20 {
            book.misbehaved += 1;
            return if dice < 16 { Reply::Hang } else { Reply::Break };
        }
        Reply::Answer(Duration::from_millis(fastrand::u64(10..150)), 202, "")
    }

    fn gone(&self, _: &Request) {
        self.book().open -= 1;
    }
}

/// What is seen in the database while calls are made.
#[derive(Default)]
struct Seen {
    samples: u32,
    held: i64,
    most_running: i64,
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let pager = Arc::new(Pager::default());
    let address = serve(pager.clone()).await?;
    let stage = Stage::set(
        "escalation",
        &arguments.common,
        include_str!("schema.sql"),
        ("127.0.0.1:8026", address),
    );
    let mut stage = stage.await?;
    let pool = stage.pool.clone();
    let seen = Arc::new(Mutex::new(Seen::default()));
    let watching = tokio::spawn(watch(pool.clone(), seen.clone()));

    let mut play = Play {
        pool,
        pager,
        alerts: Vec::new(),
        to_come: BTreeMap::new(),
        acknowledged: HashMap::new(),
        begun: Instant::now(),
        shown: Instant::now(),
    };
    for number in 0..arguments.alerts {
        let due = arguments.seconds * f64::from(number) / f64::from(arguments.alerts);
        while play.begun.elapsed().as_secs_f64() < due {
            play.go_on(&mut stage.fleet).await?;
        }
        play.raise(fastrand::bool()).await?;
        // All at one moment: whatever it is that broke, everything complains of it.
        if number == arguments.alerts / 2 {
            for _ in 0..arguments.alerts {
                play.raise(fastrand::bool()).await?;
            }
            play.ask("what is about to page", 0, 5).await?;
        }
        if number == arguments.alerts * 3 / 4 {
            play.ask("does the assumption hold", 2, 1).await?;
        }
    }
    let longest = Duration::from_secs_f64(arguments.seconds + 120.0);
    while play.left().await? > 0 || !play.to_come.is_empty() {
        ensure!(
            play.begun.elapsed() < longest,
            "{} pages are left after {longest:?}",
            play.left().await?
        );
        play.go_on(&mut stage.fleet).await?;
    }
    // For a call that should not be made any more, to be seen.
    tokio::time::sleep(LAST_CALLS).await;
    play.ask("does the assumption hold", 2, 1).await?;
    watching.abort();
    let mid_call: i64 = sqlx::query_scalar(
        "select count(*) from piecework.jobs where job_type = 'page' and state = 'cancelled' and started_at is not null",
    )
    .fetch_one(&play.pool)
    .await?;
    println!("{mid_call} pages were cancelled while they were being sent");
    let kills = stage.fleet.kills;
    drop(stage);
    let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(play.claims(kills, &seen))
}

struct Play {
    pool: PgPool,
    pager: Arc<Pager>,
    alerts: Vec<i64>,
    /// Which alerts somebody will acknowledge, and when.
    to_come: BTreeMap<Instant, i64>,
    acknowledged: HashMap<i64, Instant>,
    begun: Instant,
    shown: Instant,
}

/// Seconds between the steps of a ladder.
const WAIT: u64 = 2;
const LADDER: [&str; 3] = ["ann", "bob", "eve"];

impl Play {
    /// Raises an alert that somebody will acknowledge at some time of its ladder, or nobody will.
    async fn raise(&mut self, acknowledge: bool) -> Result<()> {
        let ladder: Vec<_> = LADDER
            .iter()
            .map(|person| json!({ "person": person, "wait": WAIT }))
            .collect();
        let id: i64 = sqlx::query_scalar("select oncall.raise_alert('checkout', $1::text::jsonb)")
            .bind(serde_json::to_string(&ladder)?)
            .fetch_one(&self.pool)
            .await?;
        self.alerts.push(id);
        if acknowledge {
            let after = Duration::from_millis(fastrand::u64(..WAIT * 2500));
            self.to_come.insert(Instant::now() + after, id);
        }
        Ok(())
    }

    /// Whatever is due by now, and a moment's rest.
    async fn go_on(&mut self, fleet: &mut Fleet) -> Result<()> {
        while let Some(entry) = self.to_come.first_entry() {
            if *entry.key() > Instant::now() {
                break;
            }
            let id = entry.remove();
            sqlx::query("select oncall.acknowledge($1, 'ann')")
                .bind(id)
                .execute(&self.pool)
                .await?;
            // From here on, since the commit.
            self.acknowledged.insert(id, Instant::now());
        }
        fleet.disturb()?;
        if self.shown.elapsed() > Duration::from_secs(2) {
            self.shown = Instant::now();
            let left = self.left().await?;
            let book = self.pager.book();
            println!(
                "{} alerts, {} acknowledged, {left} pages to come, {} paged by {} requests",
                self.alerts.len(),
                self.acknowledged.len(),
                book.pages.len(),
                book.requests
            );
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
        Ok(())
    }

    async fn left(&self) -> Result<i64> {
        let query = "select count(*) from piecework.job where job_type = 'page'";
        Ok(sqlx::query_scalar(query).fetch_one(&self.pool).await?)
    }

    /// Runs a statement of queries.sql and shows its first rows.
    #[expect(
        clippy::disallowed_methods,
        reason = "the statements come from a file of the tree"
    )]
    async fn ask(&self, what: &str, number: usize, rows: usize) -> Result<()> {
        let statements: Vec<_> = include_str!("queries.sql").split(";\n").collect();
        let statement = format!("select to_jsonb(q)::text from ({}\n) q", statements[number]);
        let found: Vec<String> = sqlx::query_scalar(sqlx::AssertSqlSafe(statement))
            .fetch_all(&self.pool)
            .await?;
        println!("{what}:");
        for row in found.iter().take(rows) {
            println!("  {row}");
        }
        Ok(())
    }

    fn claims(&self, kills: u32, seen: &Seen) -> ExitCode {
        let book = self.pager.book();
        println!(
            "{} alerts in {:.1} s, {} acknowledged, {} requests, {} of them answered badly or not at all, {} repeated and known by their key, {kills} runners killed",
            self.alerts.len(),
            self.begun.elapsed().as_secs_f64(),
            self.acknowledged.len(),
            book.requests,
            book.misbehaved,
            book.repeated,
        );
        let pages = |alert: i64, step: usize| {
            let step = i64::try_from(step).unwrap_or(i64::MAX);
            book.pages
                .get(&(alert, step))
                .map_or(&[][..], Vec::as_slice)
        };
        let open: Vec<_> = self
            .alerts
            .iter()
            .filter(|alert| !self.acknowledged.contains_key(alert))
            .collect();
        let whole = open.iter().filter(|alert| {
            (0..LADDER.len()).all(|step| pages(***alert, step).len() == 1)
                && (1..LADDER.len()).all(|step| {
                    let waited = pages(***alert, step)[0] - pages(***alert, step - 1)[0];
                    waited >= Duration::from_secs(WAIT)
                })
        });
        let whole = whole.count();
        let twice = book.pages.values().filter(|pages| pages.len() > 1).count();
        let after: Vec<_> = self
            .acknowledged
            .iter()
            .filter_map(|(alert, at)| Some(book.last.get(alert)?.saturating_duration_since(*at)))
            .collect();
        let late = after.iter().filter(|after| **after > LAST_CALLS).count();
        let in_flight = after.iter().filter(|after| !after.is_zero()).count();
        ending(&[
            claim(
                whole == open.len(),
                &format!(
                    "{whole} of {} alerts that nobody acknowledged went up their whole ladder, each step once and in its time",
                    open.len()
                ),
            ),
            claim(twice == 0, "nobody was paged twice for one step"),
            claim(
                late == 0,
                &format!(
                    "no call was begun later than {LAST_CALLS:?} after an acknowledgement; {in_flight} were begun before that"
                ),
            ),
            claim(
                seen.most_running <= AT_ONCE,
                &format!(
                    "{} pages ran at a time at most, with {} alerts at one moment too ({} open calls at the service, which notices \
                     a bit later that a caller is gone)",
                    seen.most_running,
                    self.alerts.len() / 2,
                    book.most_open,
                ),
            ),
            claim(
                seen.samples > 0 && seen.held == 0,
                &format!(
                    "no transaction was open for {HELD} while calls hung, in {} looks",
                    seen.samples
                ),
            ),
        ])
    }
}

/// Looks for transactions that wait for something outside.
async fn watch(pool: PgPool, seen: Arc<Mutex<Seen>>) -> Result<()> {
    loop {
        let (held, running): (i64, i64) = sqlx::query_as(
            "select (select count(*) from pg_stat_activity where datname = current_database() and backend_type = 'client backend'
                       and state like 'idle in transaction%' and xact_start < clock_timestamp() - $1::text::interval),
                    (select count(*) from piecework.job where job_type = 'page' and state = 'running')",
        )
        .bind(HELD)
        .fetch_one(&pool)
        .await?;
        {
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.samples += 1;
            seen.held += held;
            seen.most_running = seen.most_running.max(running);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
