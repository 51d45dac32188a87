//! `piecework pause`, `resume`, `publish` and `topics`

use clap::{Args, Subcommand};

use super::enqueue::{Options, read_payload};
use super::{Ending, Misuse, block_on, database, open_narrow, print};
use crate::config::Config;
use crate::store::{Error, Store};

/// Start no more jobs of a type, on any runner, until it is resumed
#[derive(Debug, Args)]
pub(super) struct Pause {
    /// The job type
    job_type: String,
}

/// Go on with a job type that was paused
#[derive(Debug, Args)]
pub(super) struct Resume {
    /// The job type
    job_type: String,
}

/// Enqueue one job for each job type that is subscribed to a topic, and print how many
#[derive(Debug, Args)]
pub(super) struct Publish {
    /// The topic
    topic: String,
    /// The payload, JSON; `-` reads it from standard input, `@FILE` from a file
    #[arg(default_value = "{}", allow_hyphen_values = true)]
    payload: String,
    #[command(flatten)]
    options: Options,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// List topics, subscribe job types to them, unsubscribe them
#[derive(Debug, Args)]
pub(super) struct Topics {
    #[command(subcommand)]
    command: TopicsCommand,
}

#[derive(Debug, Subcommand)]
enum TopicsCommand {
    /// List topics and the job types that are subscribed
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// From now on a job of this type follows from each publish
    Subscribe {
        /// The topic
        topic: String,
        /// The job type
        job_type: String,
    },
    /// No more
    Unsubscribe {
        /// The topic
        topic: String,
        /// The job type
        job_type: String,
    },
}

impl Pause {
    pub(super) fn run(self, config: &Config) -> anyhow::Result<Ending> {
        let job_type = self.job_type;
        with_store(config, async |store| {
            let changed = store.pause(&job_type, true).await?;
            let job_type = print::plain(&job_type);
            print::line(&if changed {
                format!("`{job_type}` is paused")
            } else {
                format!("`{job_type}` was paused already")
            })?;
            Ok(Ending::Done)
        })
    }
}

impl Resume {
    pub(super) fn run(self, config: &Config) -> anyhow::Result<Ending> {
        let job_type = self.job_type;
        with_store(config, async |store| {
            let changed = store.pause(&job_type, false).await?;
            let job_type = print::plain(&job_type);
            print::line(&if changed {
                format!("`{job_type}` is resumed")
            } else {
                format!("`{job_type}` was not paused")
            })?;
            Ok(Ending::Done)
        })
    }
}

impl Publish {
    pub(super) fn run(self, config: &Config) -> anyhow::Result<Ending> {
        // The types are those that are subscribed.
        let job = self
            .options
            .job(String::new(), read_payload(&self.payload)?);
        let (topic, json) = (self.topic, self.json);
        with_store(config, async |store| {
            let jobs = store.publish(&topic, &job).await?;
            if json {
                print::json(&serde_json::json!({ "jobs": jobs }))?;
            } else {
                print::line(&jobs.to_string())?;
            }
            Ok(Ending::Done)
        })
    }
}

impl Topics {
    pub(super) fn run(self, config: &Config) -> anyhow::Result<Ending> {
        with_store(config, async |store| {
            match &self.command {
                TopicsCommand::List { json } => {
                    let topics = store.topics().await?;
                    if *json {
                        let lines: Vec<_> = topics
                            .iter()
                            .map(|(topic, job_type)| {
                                serde_json::json!({ "topic": topic, "job_type": job_type })
                            })
                            .collect();
                        print::json(&lines)?;
                    } else {
                        let mut rows = vec![["TOPIC", "JOB TYPE"].map(str::to_owned).to_vec()];
                        rows.extend(topics.iter().map(|(topic, job_type)| {
                            vec![print::short(topic, 60), print::short(job_type, 60)]
                        }));
                        print::table(&rows)?;
                    }
                }
                TopicsCommand::Subscribe { topic, job_type } => {
                    let changed = store.subscribe(topic, job_type, true).await?;
                    say(
                        topic,
                        job_type,
                        if changed { "is" } else { "was already" },
                        "to",
                    )?;
                }
                TopicsCommand::Unsubscribe { topic, job_type } => {
                    let changed = store.subscribe(topic, job_type, false).await?;
                    say(
                        topic,
                        job_type,
                        if changed { "is no longer" } else { "was not" },
                        "to",
                    )?;
                }
            }
            Ok(Ending::Done)
        })
    }
}

fn say(topic: &str, job_type: &str, how: &str, to: &str) -> anyhow::Result<()> {
    print::line(&format!(
        "`{}` {how} subscribed {to} `{}`",
        print::plain(job_type),
        print::plain(topic)
    ))
}

/// Runs a command on the queue's database; what the database refuses is wrong usage.
pub(super) fn with_store(
    config: &Config,
    work: impl AsyncFnOnce(Store) -> anyhow::Result<Ending>,
) -> anyhow::Result<Ending> {
    let settings = database(config)?;
    block_on(async { work(open_narrow(&settings).await?).await }).map_err(|error| {
        match error.downcast::<Error>() {
            Ok(Error::Refused { message }) => Misuse(message).into(),
            Ok(error) => error.into(),
            Err(error) => error,
        }
    })
}
