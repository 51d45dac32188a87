//! The statements themselves: each prepares on a migrated database, and the claim never sorts or scans the table.

use std::collections::BTreeMap;
use std::time::Duration;

use piecework::job::{JobType, Priority, RunnerId, Timestamp};
use piecework::store::{Demand, Pick};
use sqlx::Connection;

use super::support::db::Db;

#[tokio::test]
#[expect(
    clippy::disallowed_methods,
    reason = "the statements come from files of the tree"
)]
async fn every_statement_prepares_on_a_migrated_database() {
    let db = Db::new().await;
    let mut connection = sqlx::PgConnection::connect(db.url()).await.unwrap();
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store/sql");
    let mut prepared = 0;
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let text = std::fs::read_to_string(entry.path()).unwrap();
        let name = entry.file_name();
        assert!(
            text.starts_with("-- "),
            "{name:?} does not say what it does"
        );
        let prepare = format!("prepare statement_{prepared} as {text}");
        // VACUUM cannot be prepared by name; it is run by a benchmark test.
        if name != "bench_vacuum.sql" {
            sqlx::raw_sql(sqlx::AssertSqlSafe(prepare))
                .execute(&mut connection)
                .await
                .unwrap_or_else(|error| panic!("{name:?}: {error}"));
        }
        prepared += 1;
    }
    assert!(prepared > 20);
    connection.close().await.unwrap();
    db.drop().await;
}

#[tokio::test]
async fn o_13_o_14_the_claim_reads_its_index_whatever_lies_beside() {
    let db = Db::new().await;
    // Enough that a plan with a sort or a scan would look good to the planner.
    db.store
        .bench_fill(20_000, 20_000, 20_000, 20_000, "mail")
        .await
        .unwrap();
    sqlx::query("insert into piecework.job (job_type, priority) select 'mail', 1 + n % 4 from generate_series(1, 30000) n")
        .execute(&db.pool)
        .await
        .unwrap();
    for analysed in [false, true] {
        if analysed {
            db.store.bench_vacuum().await.unwrap();
        }
        for picks in [1, 200] {
            let demand = demand(picks);
            for generic in [false, true] {
                let plan = db.store.bench_claim_plan(&demand, generic).await.unwrap();
                let text = plan.join("\n");
                assert!(
                    text.contains("job_claim"),
                    "analysed {analysed}, {picks} picks, generic {generic}:\n{text}"
                );
                assert!(text.contains("job_pkey"), "{text}");
                // The sort that is left numbers what was picked already.
                for line in &plan {
                    let node = line.trim_start().trim_start_matches("->").trim_start();
                    assert!(
                        // A handful of rows at most, read once a round.
                        !node.starts_with("Seq Scan")
                            || node.starts_with("Seq Scan on paused")
                            || node.starts_with("Seq Scan on retention")
                            || node.starts_with("Seq Scan on key_todo"),
                        "analysed {analysed}, {picks} picks, generic {generic}:\n{text}"
                    );
                }
            }
        }
    }
    db.drop().await;
}

fn demand(picks: usize) -> Demand {
    let types: Vec<JobType> = (0..picks.div_ceil(4))
        .map(|n| {
            if n == 0 {
                "mail".into()
            } else {
                format!("type{n}").into()
            }
        })
        .collect();
    Demand {
        runner: RunnerId(1),
        picks: types
            .iter()
            .flat_map(|job_type| {
                Priority::ALL.map(|priority| Pick {
                    job_type: job_type.clone(),
                    priority,
                    want: 25,
                    mark: (Timestamp::MIN, 0),
                })
            })
            .take(picks)
            .collect(),
        total: 25,
        deadlines: types
            .iter()
            .map(|job_type| (job_type.clone(), Duration::from_secs(60)))
            .collect::<BTreeMap<_, _>>(),
        ..Demand::default()
    }
}
