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
    for (section, keys) in defaults.iter().filter(|(section, _)| *section != "plugins") {
        for key in keys.as_table().unwrap().keys() {
            assert!(
                file[section].get(key).is_some(),
                "`{section}.{key}` is missing"
            );
        }
    }
    // A plugin's own keys stand there as comments, all of them.
    let own = toml::Table::try_from(piecework::config::PluginSettings {
        job_types: Some(vec![]),
        timeout: Some(Config::default().defaults.timeout),
        memory: Some(Config::default().defaults.memory),
        fuel: Some(0),
        concurrency: Some(0),
        retry_base: Some(Config::default().defaults.retry_base),
        retry_factor: Some(1.0),
        retry_max: Some(Config::default().defaults.retry_max),
        retry_jitter: Some(0.0),
    })
    .unwrap();
    for key in own.keys() {
        assert!(
            text.contains(&format!("\n# {key} = ")),
            "`[plugins.NAME] {key}` is missing"
        );
    }
}
