//! `piecework enqueue-batch`

use clap::Args;

use super::enqueue::{read_json, refused, tell};
use super::{Ending, block_on, database, open_narrow};
use crate::config::Config;
use crate::job::MAX_PAYLOAD_BYTES;

/// What the text of a batch may have: some hundred thousand small jobs. The server would take four times as much.
const MAX_BATCH_BYTES: usize = 64 * 1024 * 1024;

/// Enqueue many jobs, and one that runs when all of them have ended; print its id, which is that of the batch
#[derive(Debug, Args)]
pub(super) struct EnqueueBatch {
    /// The jobs, a JSON array of objects; `-` reads it from standard input, `@FILE` from a file
    jobs: String,
    /// The job that runs when all of them have ended, a JSON object; `@FILE` reads it from a file
    #[arg(long = "then", value_name = "JOB")]
    and_then: String,
    /// Wait for the end of the last job, print its result, and exit 0 when it is done, 1 when it failed
    #[arg(long)]
    wait: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl EnqueueBatch {
    pub(super) fn run(self, config: &Config) -> anyhow::Result<Ending> {
        let such_as =
            r#"an array such as '[{"job_type":"mail","payload":{"to":"ann@example.test"}}]'"#;
        let jobs = read_json(&self.jobs, "batch", such_as, MAX_BATCH_BYTES)?;
        let such_as = r#"an object such as '{"job_type":"report","payload":{}}'"#;
        // Its options beside its payload.
        let and_then = read_json(&self.and_then, "last job", such_as, 2 * MAX_PAYLOAD_BYTES)?;
        let settings = database(config)?;
        block_on(async {
            let store = open_narrow(&settings).await?;
            let id = store
                .enqueue_batch(&jobs, &and_then)
                .await
                .map_err(refused)?;
            tell(&store, id, self.wait, self.json).await
        })
    }
}
