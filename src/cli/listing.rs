//! `piecework plugins list`: how the plugins stand on the runners that work now.

use std::time::Duration;

use super::queue::with_store;
use super::{Ending, print};
use crate::config::Config;
use crate::store::{RunnerPlugin, RunnerPlugins};

/// Lists them; fails when something does not serve, or nobody does.
pub(super) fn running(config: &Config, json: bool) -> anyhow::Result<Ending> {
    with_store(config, async |store| {
        let runners = store.runner_plugins().await?;
        let fine = |plugin: &RunnerPlugin| {
            matches!(plugin.state.as_str(), "serving" | "canary" | "overridden")
        };
        let all = runners.iter().flat_map(|runner| &runner.plugins);
        let ending = if !runners.is_empty() && all.clone().all(fine) {
            Ending::Done
        } else {
            Ending::Failed
        };
        if json {
            print::json(&runners)?;
            return Ok(ending);
        }
        if runners.is_empty() {
            print::line(
                "no runner is alive; `piecework plugins list --plugins FOLDER` looks at a folder here",
            )?;
            return Ok(ending);
        }
        let mut rows = vec![
            [
                "RUNNER",
                "FROM",
                "PLUGIN",
                "JOB TYPES",
                "STATE",
                "SINCE",
                "VERSION",
                "BYTES",
                "COMPILED",
                "IN FLIGHT",
                "REASON",
            ]
            .map(str::to_owned)
            .to_vec(),
        ];
        for runner in &runners {
            rows.extend(runner.plugins.iter().map(|plugin| row(runner, plugin)));
            if runner.plugins.is_empty() {
                rows.push(vec![
                    print::short(&runner.name, 40),
                    "says nothing of its plugins".to_owned(),
                ]);
            }
        }
        print::table(&rows)?;
        Ok(ending)
    })
}

fn row(runner: &RunnerPlugins, plugin: &RunnerPlugin) -> Vec<String> {
    let since = plugin.since_seconds + runner.age_seconds.unwrap_or(0.0);
    let since = Duration::try_from_secs_f64(since.max(0.0).round()).unwrap_or_default();
    let meanwhile = plugin.serving.as_ref().map_or_else(String::new, |serving| {
        format!(" ({} serves)", print::version(serving))
    });
    vec![
        print::short(&runner.name, 40),
        print::plain(&plugin.source),
        print::short(&plugin.name, 40),
        print::short(&plugin.job_types.join(","), 60),
        print::plain(&plugin.state),
        humantime::format_duration(since).to_string(),
        format!("{}{meanwhile}", print::version(&plugin.digest)),
        plugin.size.to_string(),
        if plugin.cached {
            format!("{} ms, cached", plugin.compile_ms)
        } else {
            format!("{} ms", plugin.compile_ms)
        },
        in_flight(plugin),
        print::plain(plugin.reason.as_deref().unwrap_or_default()),
    ]
}

/// One number while only the newest version runs.
fn in_flight(plugin: &RunnerPlugin) -> String {
    match &plugin.in_flight[..] {
        [] => "0".to_owned(),
        [(digest, count)] if *digest == plugin.digest => count.to_string(),
        several => {
            let one =
                |(digest, count): &(String, u64)| format!("{}: {count}", print::version(digest));
            several.iter().map(one).collect::<Vec<_>>().join(", ")
        }
    }
}
