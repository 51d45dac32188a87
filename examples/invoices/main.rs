//! Invoices: mail that is sent once, whatever the provider and the fleet do meanwhile. This program is the application, and plays
//! the mail provider; the handlers are in `handlers/`, the runners are `piecework run`. README.md says what is to be seen.
#![expect(clippy::print_stdout, reason = "it is told what happens")]

#[path = "../support/mod.rs"]
mod support;

use std::collections::HashMap;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Parser;
use sqlx::postgres::PgPool;

use support::service::{Reply, Request, Service, serve};
use support::stage::{Common, Stage};
use support::{claim, ending};

/// Bill customers while the mail provider misbehaves and runners are killed, and count the mails
#[derive(Debug, Parser)]
struct Arguments {
    /// How many invoices, beside a tenth that is rolled back
    #[arg(long, default_value_t = 300)]
    invoices: u32,
    /// Over how many seconds they are written
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    #[command(flatten)]
    common: Common,
}

/// The mail provider, and its book.
#[derive(Default)]
struct Provider(Mutex<Book>);

#[derive(Default)]
struct Book {
    requests: u32,
    /// Requests whose key it knew: mails that somebody would have got twice.
    repeated: u32,
    misbehaved: u32,
    /// The invoice of each key.
    keys: HashMap<String, i64>,
    /// How many mails were delivered for each invoice.
    mails: HashMap<i64, u32>,
}

impl Provider {
    fn book(&self) -> std::sync::MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Service for Provider {
    fn reply(&self, request: &Request) -> Reply {
        let mut book = self.book();
        book.requests += 1;
        let mut accept = || {
            let invoice = request.body["invoice"].as_i64().unwrap_or(-1);
            let key = request.idempotency_key.clone();
            // As providers do: a key that is known is answered like the first time, and nothing is sent.
            if !key.is_empty() && book.keys.insert(key, invoice).is_some() {
                book.repeated += 1;
            } else {
                *book.mails.entry(invoice).or_default() += 1;
            }
        };
        let usual = Duration::from_millis(fastrand::u64(5..80));
        let reply = match fastrand::u32(..100) {
            // Refused before anything was sent.
            0..8 => Reply::Answer(usual, 500, ""),
            8..12 => Reply::Answer(Duration::ZERO, 429, "retry-after: 1\r\n"),
            12..15 => Reply::Hang,
            15..18 => Reply::Break,
            // The mail is out, and the caller does not learn of it.
            18..22 => {
                accept();
                Reply::Hang
            }
            22..27 => {
                accept();
                Reply::Break
            }
            27..31 => {
                accept();
                Reply::Answer(usual, 502, "")
            }
            31..35 => {
                accept();
                Reply::Twice(202)
            }
            _ => {
                accept();
                return Reply::Answer(usual, 202, "");
            }
        };
        book.misbehaved += 1;
        reply
    }
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let provider = Arc::new(Provider::default());
    let address = serve(provider.clone()).await?;
    let stage = Stage::set(
        "invoices",
        &arguments.common,
        include_str!("schema.sql"),
        ("127.0.0.1:8025", address),
    );
    let mut stage = stage.await?;
    let pool = stage.pool.clone();
    let first: i64 = sqlx::query_scalar("select coalesce(max(id), 0) from shop.invoice")
        .fetch_one(&pool)
        .await?;
    // The application.
    let (mut billed, mut rolled_back) = (Vec::new(), 0);
    let begun = Instant::now();
    let mut shown = Instant::now();
    for number in 0..arguments.invoices {
        let due = arguments.seconds * f64::from(number) / f64::from(arguments.invoices);
        while begun.elapsed().as_secs_f64() < due {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        if number % 10 == 9 {
            bill(&pool, false).await?;
            rolled_back += 1;
        }
        billed.push(bill(&pool, true).await?);
        stage.fleet.disturb()?;
        show(&pool, &provider, &mut shown).await?;
    }
    // Every mail finds its way, if it takes a while.
    let longest = Duration::from_secs_f64(arguments.seconds + 120.0);
    while left(&pool).await? > 0 {
        ensure!(
            begun.elapsed() < longest,
            "{} jobs are left after {longest:?}",
            left(&pool).await?
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
        stage.fleet.disturb()?;
        show(&pool, &provider, &mut shown).await?;
    }

    let ended: Vec<(String, String, i64)> = sqlx::query_as(
        "select job_type, state::text, count(*) from piecework.jobs where job_type like 'invoice-%'
           and (payload ->> 'invoice')::bigint > $1 group by 1, 2 order by 1, 2",
    )
    .bind(first)
    .fetch_all(&pool)
    .await?;
    let attempts: i64 = sqlx::query_scalar(
        "select coalesce(sum(attempt), 0)::bigint from piecework.jobs where job_type = 'invoice-mail' and (payload ->> 'invoice')::bigint > $1",
    )
    .bind(first)
    .fetch_one(&pool)
    .await?;
    let (took, kills) = (begun.elapsed().as_secs_f64(), stage.fleet.kills);
    drop(stage);

    let book = provider.book();
    let once = billed
        .iter()
        .filter(|id| book.mails.get(id) == Some(&1))
        .count();
    let strangers = book
        .mails
        .keys()
        .filter(|id| **id > first && !billed.contains(id))
        .count();
    println!(
        "{} invoices in {took:.1} s, {attempts} attempts at mails, {} requests, {} of them answered badly or not at all, {} runners killed",
        billed.len(),
        book.requests,
        book.misbehaved,
        kills
    );
    let expected = i64::from(arguments.invoices);
    let all = |job_type: &str| ended.contains(&(job_type.into(), "done".into(), expected));
    Ok(ending(&[
        claim(
            once == billed.len(),
            &format!("{once} of {} invoices have exactly one mail", billed.len()),
        ),
        claim(
            strangers == 0,
            &format!("no mail for the {rolled_back} invoices that were rolled back"),
        ),
        claim(
            all("invoice-render") && all("invoice-mail"),
            &format!("every job is done: {ended:?}"),
        ),
        claim(
            book.misbehaved == 0 || book.repeated > 0 || billed.len() < 50,
            &format!(
                "{} second mails were kept from going out by the idempotency key",
                book.repeated
            ),
        ),
    ]))
}

/// One invoice in a transaction of the application's own.
async fn bill(pool: &PgPool, commit: bool) -> Result<i64> {
    let mut transaction = pool.begin().await?;
    let customer = format!("customer-{}", fastrand::u32(..20));
    let id = sqlx::query_scalar("select shop.bill($1, $2)")
        .bind(customer)
        .bind(i64::from(fastrand::u32(100..100_000)))
        .fetch_one(&mut *transaction)
        .await?;
    if commit {
        transaction.commit().await?;
    } else {
        transaction.rollback().await?;
    }
    Ok(id)
}

async fn left(pool: &PgPool) -> Result<i64> {
    let query =
        "select count(*) from piecework.job where job_type in ('invoice-render', 'invoice-mail')";
    Ok(sqlx::query_scalar(query).fetch_one(pool).await?)
}

async fn show(pool: &PgPool, provider: &Provider, shown: &mut Instant) -> Result<()> {
    if shown.elapsed() < Duration::from_secs(2) {
        return Ok(());
    }
    *shown = Instant::now();
    let left = left(pool).await?;
    let book = provider.book();
    println!(
        "{left} jobs to do, {} mails sent by {} requests",
        book.mails.len(),
        book.requests
    );
    Ok(())
}
