//! The applications under `examples/`, played whole, with a runner killed every two seconds.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::support::db::Db;

/// Plays an application, unless a handler could not be built here; it says itself which of its claims do not hold.
async fn play(name: &str, arguments: &[&str]) {
    let built = PathBuf::from(env!("CARGO_BIN_EXE_piecework"));
    let (program, plugins) = (
        built.with_file_name("examples").join(name),
        built
            .with_file_name("")
            .join("../examples-plugins")
            .join(name),
    );
    let files = std::fs::read_dir(&plugins).unwrap_or_else(|error| {
        panic!("the handlers of {name} are not built, run examples/build.sh: {error}")
    });
    for file in files.map(|file| file.unwrap().path()) {
        if file.extension().is_some_and(|end| end == "skipped") {
            let reason = std::fs::read_to_string(&file).unwrap();
            eprintln!("skipped: {}: {}", file.display(), reason.trim());
            return;
        }
    }
    let db = Db::new().await;
    let mut command = Command::new(&program);
    command
        .args(["--kill-every", "2", "--database", db.url()])
        .args(arguments);
    let output = tokio::task::spawn_blocking(move || command.output())
        .await
        .unwrap()
        .unwrap();
    let (said, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    eprintln!("{said}{errors}");
    assert!(output.status.success(), "{}", program.display());
    assert!(said.contains("\nok ") && !said.contains("NOT OK"));
    db.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_each_invoice_has_one_mail_whatever_happens() {
    play("invoices", &["--invoices", "150", "--seconds", "8"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_pages_climb_their_ladders_until_they_are_acknowledged() {
    play("escalation", &["--alerts", "50", "--seconds", "8"]).await;
}

/// Each statement of the examples can be pasted into psql.
#[tokio::test]
async fn the_sql_of_the_examples_runs() {
    for name in ["invoices", "escalation"] {
        let db = Db::new().await;
        for file in ["schema.sql", "queries.sql"] {
            let path = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("examples")
                .join(name)
                .join(file);
            let text = std::fs::read_to_string(&path).unwrap();
            #[expect(
                clippy::disallowed_methods,
                reason = "the statements come from files of the tree"
            )]
            let ran = sqlx::raw_sql(sqlx::AssertSqlSafe(text))
                .execute(&db.pool)
                .await;
            ran.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        }
        db.drop().await;
    }
}
