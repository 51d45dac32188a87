//! `piecework enqueue`

use std::fs::File;
use std::io::Read;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use serde_json::value::RawValue;

use super::{Ending, Misuse, block_on, database, open_narrow, print};
use crate::config::Config;
use crate::job::{JobId, MAX_PAYLOAD_BYTES, check_json};
use crate::store::{Error, NewJob, Store};

/// Enqueue a job and print its id
#[derive(Debug, Args)]
pub(super) struct Enqueue {
    /// The job type
    job_type: String,
    /// The payload, JSON; `-` reads it from standard input, `@FILE` from a file
    #[arg(default_value = "{}", allow_hyphen_values = true)]
    payload: String,
    #[command(flatten)]
    options: Options,
    /// Wait for the job's end, print its result, and exit 0 when it is done, 1 when it failed
    #[arg(long)]
    wait: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

// The options of a job, the same wherever one is enqueued. (A comment for the help text would take the place of the command's.)
#[derive(Debug, Args)]
pub(super) struct Options {
    /// Not before this much later: "30s", "2h 30m"
    #[arg(long, value_parser = humantime::parse_duration, conflicts_with = "due")]
    delay: Option<Duration>,
    /// Not before this time: 2030-01-31T08:00:00Z
    #[arg(long, value_name = "TIME")]
    due: Option<String>,
    /// 1 first to 4 last [default: 2]
    #[arg(long)]
    priority: Option<i32>,
    /// How often it may be tried [default: 5]
    #[arg(long)]
    max_attempts: Option<i32>,
    /// At most one pending or running job of a type has this key; where there is one already, nothing is enqueued
    #[arg(long, value_name = "KEY")]
    unique_key: Option<String>,
    /// The key stays taken this long, also when its job has ended by then
    #[arg(long, value_parser = humantime::parse_duration, requires = "unique_key")]
    unique_for: Option<Duration>,
    /// Jobs with the same key run one after another, in the order of their ids
    #[arg(long, value_name = "KEY")]
    ordering_key: Option<String>,
    /// Whom the job is for (a tenant, an account): jobs of a type take turns between groups
    #[arg(long, value_name = "KEY")]
    group_key: Option<String>,
}

impl Options {
    /// The job that they and a payload make.
    pub(super) fn job(self, job_type: String, payload: String) -> NewJob {
        NewJob {
            job_type,
            payload,
            due_at: self.due,
            delay: self.delay,
            priority: self.priority,
            max_attempts: self.max_attempts,
            unique_key: self.unique_key,
            unique_for: self.unique_for,
            ordering_key: self.ordering_key,
            group_key: self.group_key,
        }
    }
}

impl Enqueue {
    pub(super) fn run(self, config: &Config) -> anyhow::Result<Ending> {
        let payload = read_payload(&self.payload)?;
        let settings = database(config)?;
        let job = self.options.job(self.job_type, payload);
        block_on(async {
            let store = open_narrow(&settings).await?;
            let id = store.enqueue(&job).await.map_err(refused)?;
            tell(&store, id, self.wait, self.json).await
        })
    }
}

/// What the database refuses is wrong usage.
pub(super) fn refused(error: Error) -> anyhow::Error {
    if let Error::Refused { message } = error {
        return Misuse(message).into();
    }
    error.into()
}

/// Prints the id of a job that was enqueued or, after its end, what came of it.
pub(super) async fn tell(
    store: &Store,
    id: JobId,
    wait: bool,
    json: bool,
) -> anyhow::Result<Ending> {
    if wait {
        return wait_for(store, id, json).await;
    }
    if json {
        print::json(&serde_json::json!({ "id": id }))?;
    } else {
        print::line(&id.to_string())?;
    }
    Ok(Ending::Done)
}

async fn wait_for(store: &Store, id: JobId, json: bool) -> anyhow::Result<Ending> {
    let mut pause = Duration::from_millis(5);
    let state = loop {
        match store.job_state(id).await {
            Ok(Some(state)) if !matches!(state.state.as_str(), "pending" | "running") => {
                break state;
            }
            Ok(Some(_)) => {}
            Ok(None) => {
                anyhow::bail!("job {id} is gone: it ended, and the history keeps nothing of it")
            }
            Err(error) if error.is_passing() => tracing::warn!(%error, "waiting goes on"),
            Err(error) => return Err(error.into()),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(500));
    };
    if json {
        #[derive(serde::Serialize)]
        struct Answer {
            id: JobId,
            state: String,
            attempt: i32,
            failure: Option<String>,
            last_error: Option<String>,
            // As it is stored: its numbers keep their digits.
            result: Option<Box<RawValue>>,
        }
        let result = state
            .result
            .clone()
            .map(RawValue::from_string)
            .transpose()?;
        print::json(&Answer {
            id,
            state: state.state.clone(),
            attempt: state.attempt,
            failure: state.failure,
            last_error: state.last_error,
            result,
        })?;
    } else if state.state == "done" {
        print::line(state.result.as_deref().unwrap_or("null"))?;
    } else {
        use std::io::Write as _;
        let why = state
            .last_error
            .as_deref()
            .unwrap_or("no reason is recorded");
        let class = state.failure.as_deref().unwrap_or("cancelled");
        let _ = writeln!(
            std::io::stderr(),
            "job {id} {} after {} attempts ({class}): {}",
            state.state,
            state.attempt,
            print::plain(why)
        );
    }
    Ok(if state.state == "done" {
        Ending::Done
    } else {
        Ending::Failed
    })
}

/// The payload itself, or where it says that it is; checked before anything is sent.
///
/// # Errors
/// [`Misuse`] when it cannot be read or is not JSON that the queue takes.
pub(super) fn read_payload(argument: &str) -> anyhow::Result<String> {
    let such_as = r#"JSON text such as '{"to":"ann@example.test"}'"#;
    read_json(argument, "payload", such_as, MAX_PAYLOAD_BYTES)
}

/// JSON text that is given, or lies where the argument says, of so many bytes at most; `what` and `such_as` are for messages.
///
/// # Errors
/// [`Misuse`] when it cannot be read or is not JSON that the queue takes.
pub(super) fn read_json(
    argument: &str,
    what: &str,
    such_as: &str,
    limit: usize,
) -> anyhow::Result<String> {
    let (text, from) = match argument.strip_prefix('@') {
        Some(path) => {
            let from = format!("in `{path}`");
            let text = File::open(path)
                .and_then(|file| {
                    let size = file.metadata()?;
                    // That of a pipe says nothing.
                    read_bounded(file, size.is_file().then_some(size.len()), limit)
                })
                .map_err(|error| {
                    Misuse(format!("cannot read the {what} file `{path}`: {error}"))
                })?;
            (text, from)
        }
        None if argument == "-" => {
            let text = read_bounded(std::io::stdin().lock(), None, limit)
                .with_context(|| format!("read the {what} from standard input"))?;
            (text, "on standard input".into())
        }
        None => (Ok(argument.to_owned()), "given".into()),
    };
    text.and_then(|text| check_json(&text, limit).map(|()| text))
        .map_err(|error| {
            Misuse(format!(
                "the {what} {from} is refused: {error}; it must be {such_as}"
            ))
            .into()
        })
}

/// Reads no more than the limit. The inner error says why it is refused.
fn read_bounded(
    source: impl Read,
    size: Option<u64>,
    limit: usize,
) -> std::io::Result<Result<String, String>> {
    let most = limit as u64;
    if let Some(size) = size.filter(|size| *size > most) {
        return Ok(Err(format!("it has {size} bytes, the limit is {limit}")));
    }
    let mut bytes = Vec::new();
    source.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() > limit {
        return Ok(Err(format!(
            "it has more than {limit} bytes, which is the limit"
        )));
    }
    Ok(
        String::from_utf8(bytes)
            .map_err(|error| format!("it is not UTF-8: {}", error.utf8_error())),
    )
}
