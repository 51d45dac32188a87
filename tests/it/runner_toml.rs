//! `runner.toml` in the tree is the reference of all settings: it holds every key, with its default.

use std::path::Path;

use piecework::config::Config;

#[test]
fn the_reference_file_equals_the_built_in_defaults() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("runner.toml");
    assert_eq!(Config::read(&path).unwrap(), Config::default());
}

#[test]
fn the_reference_file_names_every_key() {
    let text =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("runner.toml")).unwrap();
    let file: toml::Table = text.parse().unwrap();
    let defaults = toml::Table::try_from(Config::default()).unwrap();
    for (section, keys) in defaults
        .iter()
        .filter(|(section, _)| !["plugins", "secrets", "schedules"].contains(&section.as_str()))
    {
        named(&file[section], keys, section);
    }
    let schedule = text.split("# [schedules.NAME]").nth(1).unwrap();
    for key in [
        "job_type",
        "cron",
        "zone",
        "every",
        "payload",
        "priority",
        "max_attempts",
        "ordering_key",
        "missed",
        "overlap",
        "tick_as",
    ] {
        let line = format!("\n# {key} = ");
        assert!(
            schedule.contains(&line),
            "`[schedules.NAME] {key}` is missing"
        );
    }
    // A plugin's own keys stand there as comments, all of them; they are those of `[defaults]` and a few.
    let own = defaults["defaults"].as_table().unwrap();
    let comments = text.split("# [plugins.NAME]").nth(1).unwrap();
    let http = comments.split("# [plugins.NAME.http]").nth(1).unwrap();
    let keys = own.keys().filter(|key| *key != "http");
    for key in keys
        .map(String::as_str)
        .chain(["job_types", "secrets", "sha256"])
    {
        let line = format!("\n# {key} = ");
        assert!(
            comments.contains(&line),
            "`[plugins.NAME] {key}` is missing"
        );
    }
    for key in own["http"].as_table().unwrap().keys() {
        let line = format!("\n# {key} = ");
        assert!(
            http.contains(&line),
            "`[plugins.NAME.http] {key}` is missing"
        );
    }
}

/// Every key, in sections inside too.
fn named(file: &toml::Value, defaults: &toml::Value, at: &str) {
    for (key, value) in defaults.as_table().unwrap() {
        let found = file.get(key);
        assert!(found.is_some(), "`{at}.{key}` is missing");
        if value.is_table() {
            named(found.unwrap(), value, &format!("{at}.{key}"));
        }
    }
}

#[test]
fn the_comments_of_the_reference_file_are_settings_that_work() {
    let text =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("runner.toml")).unwrap();
    let at = text.find("#\n# [secrets.NAME]").unwrap();
    let shown: String = text[at..]
        .lines()
        .filter_map(|line| line.strip_prefix("# "))
        .filter(|line| line.starts_with('[') || line.contains(" = "))
        // One of the two, and of the two.
        .filter(|line| !line.starts_with("file = ") && !line.starts_with("every = "))
        .map(|line| format!("{line}\n"))
        .collect();
    let config = Config::parse(&shown, Path::new("runner.toml")).unwrap();
    assert_eq!(config.plugin("NAME").http.allow.0.len(), 3);
    assert_eq!(
        config.schedules["NAME"].cron.as_deref(),
        Some("30 2 * * MON-FRI")
    );
}
