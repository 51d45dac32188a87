//! O-28: roles of which none is a superuser: one owns the schema, one runs jobs, one cancels and retries, one may only enqueue, one pushes
//! plugins to the fleet. The grants are those of docs/sql.md.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use sqlx::{Connection, Executor, PgConnection};

use super::support::db::Db;
use super::support::field::{misused, piecework as program, printed};
use super::support::guests::Folder;
use super::support::process::{Host, SHORT};

const ROLES: [&str; 5] = ["owner", "runner", "operator", "producer", "deployer"];

/// Roles belong to the server, not to the database of the test: so each test has names of its own.
struct Roles {
    db: Db,
    suffix: String,
}

impl Roles {
    /// An empty database in which nobody but the owner may create anything.
    async fn new() -> Self {
        let db = Db::empty().await;
        let roles = Self {
            db,
            suffix: format!("{}_{:08x}", std::process::id(), fastrand::u32(..)),
        };
        for role in ROLES {
            let name = roles.name(role);
            roles
                .run(&format!(
                    "create role {name} login password 'secret' nosuperuser nocreatedb nocreaterole"
                ))
                .await;
            roles
                .run(&format!("alter role {name} set search_path = ''"))
                .await;
        }
        let database: String = sqlx::query_scalar("select quote_ident(current_database())")
            .fetch_one(&roles.db.pool)
            .await
            .unwrap();
        roles
            .run(&format!("revoke all on database {database} from public"))
            .await;
        roles.run("revoke all on schema public from public").await;
        for role in ROLES {
            let name = roles.name(role);
            roles
                .run(&format!("grant connect on database {database} to {name}"))
                .await;
        }
        let owner = roles.name("owner");
        roles
            .run(&format!("grant create on database {database} to {owner}"))
            .await;
        roles
    }

    fn name(&self, role: &str) -> String {
        format!("piecework_{role}_{}", self.suffix)
    }

    /// The address of the database for a role.
    fn url(&self, role: &str) -> String {
        let (scheme, rest) = self.db.url().split_once("://").unwrap();
        let rest = rest.split_once('@').map_or(rest, |(_, rest)| rest);
        format!("{scheme}://{}:secret@{rest}", self.name(role))
    }

    async fn session(&self, role: &str) -> PgConnection {
        PgConnection::connect(&self.url(role)).await.unwrap()
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "a statement cannot have a role's name as its argument"
    )]
    async fn run(&self, statement: &str) {
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement.to_owned()))
            .execute(&self.db.pool)
            .await
            .unwrap_or_else(|error| panic!("{statement}: {error}"));
    }

    /// Gives a role what docs/sql.md says it needs, as the owner.
    #[expect(
        clippy::disallowed_methods,
        reason = "the statements come from a file of the tree"
    )]
    async fn grant_as_documented(&self, role: &str) {
        let mut owner = self.session("owner").await;
        let documented = format!("piecework_{role}");
        for statement in documented_grants(&documented) {
            let statement = statement.replace(&documented, &self.name(role));
            sqlx::raw_sql(sqlx::AssertSqlSafe(statement.clone()))
                .execute(&mut owner)
                .await
                .unwrap_or_else(|error| panic!("{statement}: {error}"));
        }
        owner.close().await.unwrap();
    }

    async fn drop(self) {
        let Self { db, suffix } = self;
        let mut names = Vec::new();
        for role in ROLES {
            names.push(format!("piecework_{role}_{suffix}"));
        }
        for name in &names {
            #[expect(clippy::disallowed_methods, reason = "as above")]
            let gone = sqlx::raw_sql(sqlx::AssertSqlSafe(format!(
                "drop owned by {name} cascade; drop role {name}"
            )))
            .execute(&db.pool)
            .await;
            gone.unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        db.drop().await;
    }
}

/// The statements of docs/sql.md that give a role its rights.
fn documented_grants(role: &str) -> Vec<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/sql.md");
    let page = std::fs::read_to_string(page).unwrap();
    let mut found: Vec<String> = page
        .split(";\n")
        .map(|statement| statement.trim().to_owned())
        .filter(|statement| statement.starts_with("grant") || statement.starts_with("revoke"))
        .filter(|statement| statement.ends_with(role))
        .collect();
    found.dedup();
    assert!(found.len() >= 2, "{found:?}");
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn process_o_28_runners_and_producers_work_with_the_documented_grants_alone() {
    let roles = Roles::new().await;
    let plugins = Folder::with(&[("probe", "probe")]);
    // Nobody has migrated: said at once, with versions, whoever asks.
    let begun = Instant::now();
    let run = ["run", "--plugins", plugins.path().to_str().unwrap()];
    let version = piecework::store::Store::known_version();
    misused(
        &program(&roles.url("runner"), &run, ""),
        &[
            "no piecework schema",
            &format!("needs version {version}: run `piecework migrate`"),
        ],
    );
    assert!(begun.elapsed() < Duration::from_secs(5));
    printed(&program(&roles.url("owner"), &["migrate"], ""));
    // Migrated, and no grants.
    misused(
        &program(&roles.url("runner"), &run, ""),
        &[
            "permission denied for schema piecework",
            "docs/sql.md (Grants)",
        ],
    );
    for role in ["runner", "operator", "producer"] {
        roles.grant_as_documented(role).await;
    }
    // A day's partition is missing, and has to be made by the runner.
    let days =
        "select count(*) from pg_inherits where inhparent = 'piecework.job_history'::regclass";
    let made = roles.db.number(days).await;
    roles
        .run("do $$ begin execute 'drop table piecework.job_history_' || to_char((now() + interval '3 days') at time zone 'utc', 'YYYYMMDD'); end $$")
        .await;
    assert_eq!(roles.db.number(days).await, made - 1);
    let host = Host::start_on(&roles.url("runner"), plugins.path(), SHORT, &[]);
    host.ready().await;
    roles.db.until(made, days).await;
    works(&roles).await;
    for denied in ["cannot", "could not"] {
        assert!(
            !host.log().iter().any(|line| line.contains(denied)),
            "{}",
            host.log().join("\n")
        );
    }
    // Nothing of ours is anywhere else.
    let outside = "select count(*) from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where n.nspname not in ('piecework', 'pg_catalog', 'information_schema') and n.nspname not like 'pg_toast%'";
    assert_eq!(roles.db.number(outside).await, 0);
    let owned = "select count(*) from pg_class c join pg_roles r on r.oid = c.relowner where r.rolname like 'piecework_runner_%'";
    assert_eq!(roles.db.number(owned).await, 0);
    host.signal(Signal::TERM);
    let mut host = host;
    assert!(host.ended().await.success());

    // A version that is too old is named.
    roles
        .run("delete from piecework.migration where version = (select max(version) from piecework.migration)")
        .await;
    misused(
        &program(&roles.url("runner"), &run, ""),
        &[&format!(
            "version {} of the piecework schema, this program needs version {version}",
            version - 1
        )],
    );
    roles.drop().await;
}

/// Every kind of job, and every command.
async fn works(roles: &Roles) {
    let (runner, producer) = (roles.url("runner"), roles.url("producer"));
    let runner = |arguments: &[&str]| printed(&program(&runner, arguments, ""));
    let operator = roles.url("operator");
    let operator = |arguments: &[&str]| printed(&program(&operator, arguments, ""));
    let producer = |arguments: &[&str]| printed(&program(&producer, arguments, ""));
    runner(&["topics", "subscribe", "news", "probe"]);
    operator(&["topics", "subscribe", "news", "probe"]);
    let ok = r#"{"do":"ok"}"#;
    runner(&["enqueue", "probe", ok, "--wait"]);
    producer(&[
        "enqueue",
        "probe",
        ok,
        "--unique-key",
        "k",
        "--unique-for",
        "1h",
    ]);
    producer(&["enqueue", "probe", ok, "--ordering-key", "o"]);
    producer(&["enqueue", "probe", ok, "--ordering-key", "o"]);
    assert_eq!(producer(&["publish", "news", ok]), "1");
    let follow = r#"{"do":"follow","job_type":"probe","payload":{"do":"ok"},"unique_key":"f","ordering_key":"g"}"#;
    producer(&["enqueue", "probe", follow]);
    producer(&[
        "enqueue",
        "probe",
        r#"{"do":"steps","steps":3,"fail_at":2,"ms":1}"#,
    ]);
    producer(&[
        "enqueue",
        "probe",
        r#"{"do":"progress","steps":3,"ms":200}"#,
    ]);
    let failed = producer(&[
        "enqueue",
        "probe",
        r#"{"do":"boom","text":"no"}"#,
        "--max-attempts",
        "1",
    ]);
    // Ends by a cancel while it runs, after a retry.
    let naps = producer(&["enqueue", "probe", r#"{"do":"nap","ms":60000}"#]);
    roles
        .db
        .until(
            1,
            "select count(*) from piecework.job where state = 'running'",
        )
        .await;
    assert!(runner(&["status"]).contains("probe"));
    runner(&["jobs", "cancel", &naps]);
    operator(&["jobs", "cancel", &naps]);
    roles
        .db
        .until(0, "select count(*) from piecework.job")
        .await;
    operator(&["jobs", "retry", &failed]);
    roles
        .db
        .until(0, "select count(*) from piecework.job")
        .await;
    runner(&["pause", "probe"]);
    operator(&["pause", "probe"]);
    runner(&["resume", "probe"]);
    operator(&["resume", "probe"]);
    runner(&["jobs", "show", &failed]);
    runner(&["jobs", "list"]);
    operator(&["jobs", "list"]);
    let states = "select count(*) from piecework.jobs where state = 'done'";
    assert_eq!(roles.db.number(states).await, 9);
    assert_eq!(
        roles.db.number("select count(*) from piecework.jobs").await,
        11
    );
}

#[tokio::test]
#[expect(
    clippy::disallowed_methods,
    reason = "the names come from the catalogue"
)]
async fn o_28_a_role_that_may_enqueue_can_do_nothing_else() {
    let roles = Roles::new().await;
    printed(&program(&roles.url("owner"), &["migrate"], ""));
    roles.grant_as_documented("producer").await;
    let mut producer = roles.session("producer").await;
    for allowed in [
        "select piecework.enqueue('mail', '{\"secret\": 1}', unique_key => 'k', ordering_key => 'o')",
        "select piecework.enqueue_many('[{\"job_type\": \"mail\"}]')",
        "select piecework.publish('news', '{}')",
        "select piecework.enqueue_batch('[{\"job_type\": \"mail\"}]', '{\"job_type\": \"mail\"}')",
    ] {
        producer.execute(allowed).await.unwrap();
    }
    let relations: Vec<String> = sqlx::query_scalar(
        "select format('%I.%I', n.nspname, c.relname) from pg_class c join pg_namespace n on n.oid = c.relnamespace
         where n.nspname = 'piecework' and c.relkind in ('r', 'p', 'v')",
    )
    .fetch_all(&roles.db.pool)
    .await
    .unwrap();
    let functions: Vec<String> = sqlx::query_scalar(
        "select format('select piecework.%I(%s)', p.proname,
                       (select string_agg(format('null::%I.%I', tn.nspname, t.typname), ', ' order by u.place)
                        from unnest(p.proargtypes) with ordinality as u (oid, place)
                        join pg_type t on t.oid = u.oid join pg_namespace tn on tn.oid = t.typnamespace))
         from pg_proc p join pg_namespace n on n.oid = p.pronamespace
         where n.nspname = 'piecework' and p.proname not in ('enqueue', 'enqueue_many', 'enqueue_batch', 'publish', 'start_anew')",
    )
    .fetch_all(&roles.db.pool)
    .await
    .unwrap();
    let sequences: Vec<String> = sqlx::query_scalar(
        "select format('%I.%I', n.nspname, c.relname) from pg_class c join pg_namespace n on n.oid = c.relnamespace
         where n.nspname = 'piecework' and c.relkind = 'S'",
    )
    .fetch_all(&roles.db.pool)
    .await
    .unwrap();
    assert!(relations.len() >= 15 && functions.len() >= 15 && sequences.len() >= 3);
    let mut denied: Vec<String> = functions;
    for relation in relations {
        // How long jobs are kept is no secret.
        if relation != "piecework.retention" {
            denied.push(format!("select * from {relation}"));
            denied.push(format!("select count(*) from {relation}"));
        }
        denied.push(format!("insert into {relation} default values"));
        denied.push(format!("delete from {relation}"));
        denied.push(format!("truncate {relation}"));
        denied.push(format!("do $$ begin lock table {relation}; end $$"));
        denied.push(format!("create index on {relation} ((1))"));
        denied.push(format!("drop table {relation}"));
    }
    for sequence in sequences {
        denied.push(format!("select nextval('{sequence}')"));
        denied.push(format!("select last_value from {sequence}"));
    }
    denied.extend(
        [
            // Anybody may call it, with the rights that they have.
            "select piecework.start_anew(1, 'failed', now())",
            "update piecework.job set state = 'pending'",
            "update piecework.job_history set state = 'done'",
            "update piecework.runner set state = 'dead'",
            "create table piecework.mine (id int)",
            "create table public.mine (id int)",
            "create temporary table mine (id int)",
            "create schema mine",
            "alter function piecework.enqueue security invoker",
        ]
        .map(str::to_owned),
    );
    for statement in denied {
        let answer = sqlx::raw_sql(sqlx::AssertSqlSafe(statement.clone()))
            .execute(&mut producer)
            .await;
        let error = answer.expect_err(&statement);
        let code = error
            .as_database_error()
            .unwrap()
            .code()
            .unwrap()
            .into_owned();
        // Some cannot be done to a view, by whoever it may be.
        assert!(
            ["42501", "42809", "55000"].contains(&code.as_str()),
            "{statement}: {error}"
        );
    }
    producer.close().await.unwrap();
    assert_eq!(
        roles.db.number("select count(*) from piecework.job").await,
        4
    );
    roles.drop().await;
}

/// Components are code for all runners: a runner can fetch them, count and judge, and not push.
#[tokio::test]
async fn o_28_a_role_that_deploys_pushes_plugins_and_a_runner_does_not() {
    let roles = Roles::new().await;
    let folder = Folder::with(&[("probe", "probe")]);
    let file = folder.path().join("probe.wasm");
    let file = file.to_str().unwrap();
    printed(&program(&roles.url("owner"), &["migrate"], ""));
    for role in ["runner", "deployer", "operator"] {
        roles.grant_as_documented(role).await;
    }
    let plugins = |role: &str, arguments: &[&str]| {
        let mut all = vec!["plugins"];
        all.extend(arguments);
        program(&roles.url(role), &all, "")
    };
    let push = ["push", file, "--wait", "1ms"];
    for role in ["runner", "operator"] {
        misused(
            &plugins(role, &push),
            &["permission denied", "docs/sql.md (Grants)"],
        );
    }
    printed(&plugins("deployer", &push));
    for arguments in [
        &["pin", "probe"][..],
        &["unpin", "probe"],
        &["releases"],
        &["history"],
        &["withdraw", "probe"],
    ] {
        printed(&plugins("deployer", arguments));
    }
    printed(&plugins("deployer", &push));
    let who = roles.name("deployer");
    let mut by =
        sqlx::query_scalar::<_, String>("select distinct who from piecework.release_history")
            .fetch_all(&roles.db.pool)
            .await
            .unwrap();
    assert_eq!(by.pop().as_deref(), Some(who.as_str()));
    assert!(by.is_empty());
    // What a runner does, as the runner.
    let settings = piecework::config::Database {
        url: roles.url("runner"),
        ..piecework::config::Database::default()
    };
    let store = piecework::store::Store::open(&settings).unwrap();
    store.check_schema().await.unwrap();
    let wanted = store.wanted().await.unwrap();
    let digest = wanted[0].stable.digest;
    assert!(store.component(&digest).await.unwrap().is_some());
    let id = store
        .register("r", 1, &[], Duration::from_secs(60), &[])
        .await
        .unwrap();
    store.report_plugins(id, true, "[]").await.unwrap();
    store.count_canaries(1, &[]).await.unwrap();
    store.judge_canaries().await.unwrap();
    store.prune_components().await.unwrap();
    assert_eq!(store.runner_plugins().await.unwrap().len(), 1);
    store.releases().await.unwrap();
    store.plugin_history(None, 10).await.unwrap();
    store.close().await;
    // And not in another way.
    let mut runner = roles.session("runner").await;
    let mut deployer = roles.session("deployer").await;
    for denied in [
        "insert into piecework.component (digest, bytes) values (sha256('a'), 'a')",
        "update piecework.component set signature = 'a'",
        "delete from piecework.component",
        "insert into piecework.component_part (upload, place, bytes) values (1, 1, 'a')",
        "update piecework.release set pinned_at = null, pinned_by = null",
        "insert into piecework.release (job_type) values ('a')",
        "delete from piecework.release_history",
    ] {
        for session in [&mut runner, &mut deployer] {
            let error = session.execute(denied).await.expect_err(denied);
            assert!(error.to_string().contains("permission denied"), "{error}");
        }
    }
    for call in [
        "select piecework.component_put('a')",
        "select piecework.component_part(1, 1, 'a')",
        "select piecework.component_join(1, 'a')",
        "select piecework.plugin_push('probe', 'a')",
        "select piecework.plugin_promote('probe')",
        "select piecework.plugin_rollback('probe')",
        "select piecework.plugin_pin('probe')",
        "select piecework.plugin_unpin('probe')",
        "select piecework.plugin_withdraw('probe')",
    ] {
        let error = runner.execute(call).await.expect_err(call);
        assert!(
            error.to_string().contains("permission denied for function"),
            "{error}"
        );
    }
    let error = deployer
        .execute("select piecework.enqueue('probe')")
        .await
        .unwrap_err();
    assert!(error.to_string().contains("permission denied"), "{error}");
    runner.close().await.unwrap();
    deployer.close().await.unwrap();
    roles.drop().await;
}
