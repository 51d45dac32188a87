//! O-13 and O-14: what a claim costs does not depend on the jobs that have ended, nor on those that are for later. By buffers, which no
//! busy machine changes.

use std::collections::BTreeMap;
use std::time::Duration;

use piecework::job::{JobType, Priority, RunnerId, Timestamp};
use piecework::store::{Demand, NewJob, Pick};

use super::support::field::{Field, probe};

/// What there is to claim, and one claim of it.
const DUE: i64 = 20_000;
const CLAIMED: u32 = 25;

#[tokio::test(flavor = "multi_thread")]
async fn o_13_o_14_a_claim_touches_as_many_buffers_whatever_lies_beside() {
    let field = Field::new().await;
    let store = &field.db.store;
    let job_type = JobType::from("probe");
    let runner = store
        .register(
            "here",
            4,
            std::slice::from_ref(&job_type),
            Duration::from_secs(3600),
            &[],
        )
        .await
        .unwrap();
    sqlx::query("insert into piecework.job (job_type, priority) select 'probe', 1 + n % 4 from generate_series(1, $1) n")
        .bind(DUE)
        .execute(&field.db.pool)
        .await
        .unwrap();
    let demand = demand(runner, &job_type);
    let alone = buffers(&field, &demand).await;
    // A year of finished jobs and of future ones would be more; the claim would not.
    store.bench_fill(200_000, 0, 0, 0, "probe").await.unwrap();
    let finished = buffers(&field, &demand).await;
    store.bench_fill(0, 200_000, 0, 0, "probe").await.unwrap();
    let future = buffers(&field, &demand).await;
    // First by priority, and not due for ten years.
    sqlx::query(
        "insert into piecework.job (job_type, priority, due_at)
         select 'probe', 1, now() + interval '10 years' + n * interval '1 second' from generate_series(1, 50000) n",
    )
    .execute(&field.db.pool)
    .await
    .unwrap();
    let first = buffers(&field, &demand).await;
    eprintln!(
        "buffers of a claim of {CLAIMED}: alone {alone}, beside finished {finished}, future {future}, future ones that sort first {first}"
    );
    // Two pages more on each of a job's ways into the table and its three indexes, which are deeper by then. The table has
    // thousands.
    let some = u64::from(CLAIMED) * 4 * 2;
    assert!(finished <= alone + some, "{alone}, then {finished}");
    assert!(future <= alone + some, "{alone}, then {future}");
    assert!(first <= future + some, "{future}, then {first}");

    // And a claim that finds nothing.
    sqlx::query("delete from piecework.job where due_at <= now()")
        .execute(&field.db.pool)
        .await
        .unwrap();
    let nothing = buffers(&field, &demand).await;
    assert!(nothing < 100, "{nothing}");

    // Those that become due start within two seconds, by the database's clock.
    let here = field.start().await;
    for millis in (0..3000_u64).step_by(150) {
        let job = NewJob {
            delay: Some(Duration::from_millis(millis)),
            ..probe(r#"{"do":"ok"}"#)
        };
        store.enqueue(&job).await.unwrap();
    }
    let done = "select count(*) from piecework.job_history where id > 0 and state = 'done'";
    field.db.until(20, done).await;
    let late = "select count(*) from piecework.job_history
        where id > 0 and (started_at < due_at or started_at > due_at + interval '2 seconds')";
    assert_eq!(field.db.number(late).await, 0);
    field.end(here).await;
}

/// The buffers that a claim touches, all in all. Nowhere in its plan is a table read from end to end, or sorted.
async fn buffers(field: &Field, demand: &Demand) -> u64 {
    field.db.store.bench_vacuum().await.unwrap();
    let plan = field.db.store.bench_claim_buffers(demand).await.unwrap();
    let text = plan.join("\n");
    for line in &plan {
        let node = line.trim_start().trim_start_matches("->").trim_start();
        let small = [
            "Seq Scan on paused",
            "Seq Scan on key_todo",
            "Seq Scan on retention",
        ];
        assert!(
            !node.starts_with("Seq Scan") || small.iter().any(|table| node.starts_with(table)),
            "{text}"
        );
        // What was picked is numbered, in the order of the picks; nothing else is sorted.
        if let Some(key) = node.strip_prefix("Sort Key: ") {
            assert!(!key.contains("due_at"), "{text}");
        }
    }
    // The topmost node counts those below it.
    let top = plan
        .iter()
        .find_map(|line| line.trim_start().strip_prefix("Buffers: shared "))
        .unwrap_or_else(|| panic!("{text}"));
    top.split(' ')
        .filter_map(|part| {
            part.strip_prefix("hit=")
                .or_else(|| part.strip_prefix("read="))
        })
        .map(|number| number.parse::<u64>().unwrap())
        .sum()
}

fn demand(runner: RunnerId, job_type: &JobType) -> Demand {
    Demand {
        runner,
        picks: Priority::ALL
            .map(|priority| Pick {
                job_type: job_type.clone(),
                priority,
                want: CLAIMED,
                mark: (Timestamp::MIN, 0),
            })
            .to_vec(),
        total: CLAIMED,
        deadlines: BTreeMap::from([(job_type.clone(), Duration::from_secs(60))]),
        ..Demand::default()
    }
}
