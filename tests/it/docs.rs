//! The documentation's SQL: every block runs as it stands, in order, on an empty database of its file.

use std::fs;
use std::path::{Path, PathBuf};

use sqlx::{Connection, PgConnection};

use super::support::db::Db;

/// What a fenced block begins with that is SQL.
const FENCE: &str = "```sql";
/// The first line of a block that must fail.
const FAILS: &str = "-- fails:";

struct Block {
    /// Its file and line, for whoever has to repair it.
    place: String,
    text: String,
    /// What the error says.
    fails: Option<String>,
}

#[tokio::test]
async fn every_block_of_sql_in_the_documentation_runs() {
    let mut on_the_sql_page = 0;
    for page in pages() {
        let blocks = blocks(&page);
        if page.ends_with("docs/sql.md") {
            on_the_sql_page = blocks.len();
        }
        if blocks.is_empty() {
            continue;
        }
        let db = Db::new().await;
        let mut connection = PgConnection::connect(db.url()).await.unwrap();
        for block in &blocks {
            run(&mut connection, block).await;
        }
        connection.close().await.unwrap();
        db.drop().await;
    }
    assert!(
        on_the_sql_page >= 15,
        "only {on_the_sql_page} blocks were found in docs/sql.md"
    );
}

#[expect(
    clippy::disallowed_methods,
    reason = "the statements come from files of the tree"
)]
async fn run(connection: &mut PgConnection, block: &Block) {
    let place = &block.place;
    let answer = sqlx::raw_sql(sqlx::AssertSqlSafe(block.text.clone()))
        .execute(&mut *connection)
        .await;
    match (answer, &block.fails) {
        (Ok(_), None) => {}
        (Err(error), Some(expected)) => {
            let error = error.to_string();
            assert!(
                error.contains(expected.as_str()),
                "{place}: fails with another error: {error}"
            );
            // The block may have begun a transaction.
            sqlx::raw_sql("rollback")
                .execute(&mut *connection)
                .await
                .unwrap();
        }
        (Ok(_), Some(expected)) => panic!("{place}: does not fail with `{expected}`"),
        (Err(error), None) => panic!("{place}: {error}"),
    }
}

fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pages: Vec<_> = fs::read_dir(root.join("docs"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .collect();
    pages.sort_unstable();
    pages.push(root.join("README.md"));
    pages
}

/// The blocks of SQL in a page. None may be marked to be left out.
fn blocks(page: &Path) -> Vec<Block> {
    let text = fs::read_to_string(page).unwrap();
    let name = page.file_name().unwrap().to_string_lossy().into_owned();
    let mut found = Vec::new();
    let mut lines = text.lines().zip(1..);
    while let Some((line, number)) = lines.next() {
        if !line.trim_start().starts_with("```") {
            continue;
        }
        let place = format!("{name}:{number}");
        let content: Vec<&str> = lines
            .by_ref()
            .map(|(line, _)| line)
            .take_while(|line| line.trim() != "```")
            .collect();
        if !line.trim_start().starts_with(FENCE) {
            continue;
        }
        assert_eq!(line, FENCE, "{place}: every block of SQL is run");
        let fails = content
            .first()
            .and_then(|first| first.strip_prefix(FAILS))
            .map(|expected| expected.trim().to_owned());
        assert!(
            fails.as_deref() != Some(""),
            "{place}: does not say how it fails"
        );
        found.push(Block {
            place,
            text: content.join("\n"),
            fails,
        });
    }
    found
}
