//! Which components may serve: pins and signatures, for files and for what the fleet gives, and what `plugins check` says.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use minisign::KeyPair;
use piecework::config::Config;
use piecework::engine::{Engine, digest, hex};
use piecework::job::JobType;
use piecework::plugins::{PluginState, Registry, Shelf, refit};
use piecework::store::{Version, Wanted};
use piecework::trust::{self, Trusted};

use super::cli::{run, text};
use super::support::guests::{self, Folder};

fn keys() -> KeyPair {
    KeyPair::generate_unencrypted_keypair().unwrap()
}

fn sign(keys: &KeyPair, bytes: &[u8]) -> String {
    let comment = Some("file:mail.wasm");
    minisign::sign(None, &keys.sk, bytes, comment, None)
        .unwrap()
        .into_string()
}

/// `[trust]` with these keys.
fn trust(keys: &[&KeyPair], require: bool) -> String {
    let keys: Vec<_> = keys.iter().map(|keys| keys.pk.to_base64()).collect();
    format!("[trust]\nrequire_signature = {require}\nkeys = {keys:?}\n")
}

fn config(text: &str) -> Config {
    Config::parse(text, Path::new("runner.toml")).unwrap()
}

/// What is said of these bytes as `mail`.
fn check(bytes: &[u8], signature: Option<&str>, settings: &str) -> Result<Trusted, String> {
    let rules = config(settings).plugin("mail").trust;
    trust::check(bytes, signature, &rules).map_err(|distrust| distrust.to_string())
}

#[test]
fn a_signature_must_be_of_these_bytes_and_of_one_of_the_keys() {
    let (ours, new, theirs) = (keys(), keys(), keys());
    let bytes = b"a component";
    let good = sign(&ours, bytes);
    let signed = |pinned| Trusted {
        pinned,
        signed: Some("file:mail.wasm".to_owned()),
    };
    for require in [false, true] {
        let one = trust(&[&ours], require);
        assert_eq!(check(bytes, Some(&good), &one), Ok(signed(false)));
        // While keys change both are good, in any order; afterwards the old one is not.
        for both in [[&ours, &new], [&new, &ours]] {
            let both = trust(&both, require);
            assert_eq!(check(bytes, Some(&good), &both), Ok(signed(false)));
            let later = sign(&new, bytes);
            assert_eq!(check(bytes, Some(&later), &both), Ok(signed(false)));
        }
        let wrong_key = "with a key that is not among `keys` under `[trust]` (runner.toml line 3)";
        let other_bytes =
            "that of other bytes, or was changed; it claims to be of one of `keys` under `[trust]`";
        let refused = [
            (
                check(bytes, Some(&good), &trust(&[&new], require)),
                wrong_key,
            ),
            (check(bytes, Some(&sign(&theirs, bytes)), &one), wrong_key),
            (
                check(bytes, Some(&sign(&ours, b"another")), &one),
                other_bytes,
            ),
            (check(b"A component", Some(&good), &one), other_bytes),
            // The trusted comment is signed too; the one above is not.
            (
                check(bytes, Some(&good.replace("file:mail", "file:evil")), &one),
                other_bytes,
            ),
            (check(bytes, Some(""), &one), "is none of minisign"),
            (
                check(bytes, Some(&good[..good.len() / 2]), &one),
                "is none of minisign",
            ),
        ];
        for (said, reason) in refused {
            let said = said.unwrap_err();
            assert!(said.contains(reason), "{said}");
        }
        let unsigned = check(bytes, None, &one);
        if require {
            let said = unsigned.unwrap_err();
            assert!(
                said.starts_with("it is not signed, which `require_signature` under `[trust]` (runner.toml line 2) asks for; sign it with `minisign -Sm NAME.wasm`"),
                "{said}"
            );
        } else {
            assert_eq!(unsigned, Ok(Trusted::default()));
        }
    }
    // Without keys nobody looks at signatures.
    assert_eq!(check(bytes, Some("nonsense"), ""), Ok(Trusted::default()));
    // With another key of the same id the signature is not good.
    let mut forged = keys();
    let claimed = ours.pk.to_bytes();
    let mut raw = forged.pk.to_bytes();
    raw[2..10].copy_from_slice(&claimed[2..10]);
    forged.pk = minisign::PublicKey::from_bytes(&raw).unwrap();
    assert!(check(bytes, Some(&good), &trust(&[&forged], true)).is_err());
    assert!(check(bytes, Some(&good), &trust(&[&forged, &ours], true)).is_ok());
}

/// A signature of the old form over 64 bytes is, but for its first letters, one over all that has these for its hash.
#[test]
fn a_signature_of_the_old_form_is_not_taken() {
    let ours = keys();
    let good = sign(&ours, b"a component");
    // "RU" are the letters of the form with a hash, "RW" those of the one without.
    let old = good.replacen("\nRU", "\nRW", 1);
    assert_ne!(old, good);
    let said = check(b"a component", Some(&old), &trust(&[&ours], false)).unwrap_err();
    assert!(said.contains("has the old form"), "{said}");
}

#[test]
fn a_pin_lets_in_what_has_its_digest_alone() {
    let (first, second, third) = (b"first", b"second", b"third");
    let (one, two) = (hex(&digest(first)), hex(&digest(second)));
    let pins = format!(
        "[plugins.mail]\nsha256 = ['{one}', '{}']\n",
        two.to_uppercase()
    );
    let pinned = Trusted {
        pinned: true,
        signed: None,
    };
    assert_eq!(check(first, None, &pins), Ok(pinned.clone()));
    assert_eq!(check(second, None, &pins), Ok(pinned));
    let said = check(third, None, &pins).unwrap_err();
    let third_digest = hex(&digest(third));
    assert_eq!(
        said,
        format!(
            "its sha256 is {third_digest}, and `sha256` under `[plugins.mail]` (runner.toml line 2) pins other components; \
             if it is the one that shall serve, put its sha256 there; else restore one of those that are pinned"
        )
    );
    // A pin does not stand in for a signature, nor a signature for a pin; and it is about one plugin.
    let ours = keys();
    let both = trust(&[&ours], true) + &pins;
    assert!(
        check(first, None, &both)
            .unwrap_err()
            .contains("not signed")
    );
    let signature = sign(&ours, third);
    assert!(
        check(third, Some(&signature), &both)
            .unwrap_err()
            .contains("pins other")
    );
    assert!(
        check(first, Some(&sign(&ours, first)), &both)
            .unwrap()
            .pinned
    );
    let rules = config(&pins).plugin("other").trust;
    assert!(trust::check(third, None, &rules).is_ok());
}

/// A runner's plugins with these settings.
struct Bed {
    files: Folder,
    engine: Engine,
    config: Config,
    registry: Registry,
    shelf: Shelf,
}

impl Bed {
    fn new(settings: &str) -> Self {
        let files = Folder::new();
        let mut config = config(settings);
        config.engine.cache = files.path().join("cache");
        Self {
            engine: Engine::new(&config, 1).unwrap(),
            config,
            registry: Registry::default(),
            shelf: Shelf::open(files.path()).unwrap(),
            files,
        }
    }

    /// Twice: what changed is taken once it has stayed the same.
    fn settle(&mut self) -> bool {
        let scan = |bed: &mut Self| {
            bed.shelf
                .scan(&bed.engine, &bed.config, &bed.registry)
                .unwrap()
        };
        let first = scan(self);
        scan(self) || first
    }

    fn put_signature(&self, text: &str) {
        let path = self.files.path().join("mail.wasm.minisig");
        let temporary = path.with_extension("tmp");
        fs::write(&temporary, text).unwrap();
        fs::rename(temporary, path).unwrap();
    }

    fn serves(&self) -> Option<[u8; 32]> {
        let plugin = self.registry.find(&JobType::from("mail"))?;
        Some(plugin.handler.digest())
    }

    fn state(&mut self) -> PluginState {
        let states = self.shelf.states(&self.config);
        states.into_iter().next().unwrap()
    }

    fn refused(&mut self) -> String {
        let state = self.state();
        assert_eq!(state.state, "refused");
        state.reason.unwrap()
    }

    /// The fleet wants these bytes with this signature, and the database has them.
    fn release(&mut self, revision: i64, bytes: &[u8], signature: Option<String>) {
        let wanted = Wanted {
            job_type: "mail".into(),
            stable: Version {
                digest: digest(bytes),
                size: bytes.len() as u64,
                signature,
            },
            canary: None,
            revision,
        };
        self.shelf.want(vec![wanted], &self.registry);
        let mut load = self.shelf.next_load(&HashSet::new()).unwrap();
        load.give(Ok(Some(bytes.to_vec())));
        let loaded = load.run(&self.engine, &self.config);
        self.shelf.put(loaded, &self.registry);
    }
}

#[test]
fn a_file_serves_once_its_signature_is_good_and_a_new_one_is_looked_at() {
    let (ours, theirs) = (keys(), keys());
    let (noop, flaky) = (guests::bytes("noop"), guests::bytes("flaky"));
    let mut bed = Bed::new(&trust(&[&ours], true));
    bed.files.put("mail", &noop);
    bed.settle();
    assert_eq!(bed.serves(), None);
    assert!(bed.refused().contains("it is not signed"));
    assert!(!bed.settle(), "nothing changed, nothing is said again");
    for (signature, reason) in [
        (sign(&ours, &flaky), "that of other bytes"),
        (sign(&theirs, &noop), "not among `keys`"),
        ("x".repeat(10_000), "more than 8192 bytes"),
    ] {
        bed.put_signature(&signature);
        assert!(bed.settle());
        assert!(bed.refused().contains(reason), "{}", bed.refused());
        assert_eq!(bed.serves(), None);
    }
    bed.put_signature(&sign(&ours, &noop));
    bed.settle();
    assert_eq!(bed.serves(), Some(digest(&noop)));
    assert_eq!(bed.state().state, "serving");
    // Another version without its signature is refused, the one before serves on.
    bed.files.put("mail", &flaky);
    bed.settle();
    assert!(bed.refused().contains("that of other bytes"));
    assert_eq!(bed.serves(), Some(digest(&noop)));
    bed.put_signature(&sign(&ours, &flaky));
    bed.settle();
    assert_eq!(bed.serves(), Some(digest(&flaky)));
    // The content that serves is held against a new signature too; none is compiled anew for it.
    for signature in [Some(sign(&theirs, &flaky)), None] {
        match signature {
            Some(signature) => bed.put_signature(&signature),
            None => fs::remove_file(bed.files.path().join("mail.wasm.minisig")).unwrap(),
        }
        bed.settle();
        bed.refused();
        assert_eq!(bed.serves(), Some(digest(&flaky)));
    }
    bed.put_signature(&sign(&ours, &flaky));
    bed.settle();
    assert_eq!(bed.state().state, "serving");
}

#[test]
fn what_lies_in_the_place_of_a_signature_and_is_none_is_refused() {
    let ours = keys();
    let noop = guests::bytes("noop");
    let mut bed = Bed::new(&trust(&[&ours], false));
    fs::create_dir(bed.files.path().join("mail.wasm.minisig")).unwrap();
    bed.files.put("mail", &noop);
    bed.settle();
    assert!(bed.refused().contains("is no file"), "{}", bed.refused());
    assert_eq!(bed.serves(), None);
    // Nobody looks there without keys.
    bed.config.trust.keys.clear();
    bed.files.put("mail", &noop);
    bed.settle();
    assert_eq!(bed.serves(), Some(digest(&noop)));
}

#[test]
fn a_pin_holds_before_the_compiler_and_whatever_the_cache_has() {
    let (noop, flaky) = (guests::bytes("noop"), guests::bytes("flaky"));
    let pin = |bytes: &[u8]| format!("[plugins.mail]\nsha256 = '{}'\n", hex(&digest(bytes)));
    let mut bed = Bed::new("");
    bed.engine.compile(&flaky, false).unwrap();
    assert!(bed.engine.compile(&flaky, false).unwrap().cached());
    bed.config.plugins = config(&pin(&noop)).plugins;
    for bytes in [flaky.as_slice(), b"\0asm\x01\0\0\0"] {
        bed.files.put("mail", bytes);
        bed.settle();
        let said = bed.refused();
        assert!(said.starts_with("its sha256 is "), "{said}");
        assert_eq!(bed.serves(), None);
    }
    bed.files.put("mail", &noop);
    bed.settle();
    assert_eq!(bed.serves(), Some(digest(&noop)));
}

#[test]
fn a_pin_holds_for_a_file_of_another_name_that_serves_the_type() {
    let noop = guests::bytes("noop");
    let pin = |bytes: &[u8]| hex(&digest(bytes));
    let settings = |bytes: &[u8]| {
        format!(
            "[plugins.letters]\njob_types = ['mail']\nsha256 = '{}'\n",
            pin(bytes)
        )
    };
    let mut bed = Bed::new(&settings(b"another"));
    bed.files.put("mail", &noop);
    bed.settle();
    assert!(bed.refused().contains("`sha256` under `[plugins.letters]`"));
    assert_eq!(bed.serves(), None);
    bed.config = config(&settings(&noop));
    bed.files.put("mail", &noop);
    bed.settle();
    assert_eq!(bed.serves(), Some(digest(&noop)));
}

#[test]
fn releases_of_the_fleet_are_held_against_the_same_pins_and_keys() {
    let (ours, theirs) = (keys(), keys());
    let (noop, flaky) = (guests::bytes("noop"), guests::bytes("flaky"));
    // The section that serves the type holds, whatever its name.
    let pins = format!(
        "[plugins.letters]\njob_types = ['mail']\nsha256 = ['{}', '{}']\n",
        hex(&digest(&noop)),
        hex(&digest(b"another"))
    );
    let mut bed = Bed::new(&(trust(&[&ours], true) + &pins));
    for (revision, signature, reason) in [
        (1, None, "it is not signed"),
        (2, Some(sign(&ours, &flaky)), "that of other bytes"),
        (3, Some(sign(&theirs, &noop)), "not among `keys`"),
    ] {
        bed.release(revision, &noop, signature);
        assert!(bed.refused().contains(reason), "{}", bed.refused());
        assert_eq!(bed.serves(), None);
    }
    bed.release(4, &noop, Some(sign(&ours, &noop)));
    assert_eq!(bed.serves(), Some(digest(&noop)));
    // Signed, but not pinned: what served goes on.
    bed.release(5, &flaky, Some(sign(&ours, &flaky)));
    assert!(bed.refused().contains("`sha256` under `[plugins.letters]`"));
    assert_eq!(bed.serves(), Some(digest(&noop)));
}

/// New settings hold as a whole or not at all, so those that distrust what serves do not hold.
#[test]
fn new_keys_are_held_against_what_serves() {
    let (ours, new) = (keys(), keys());
    let noop = guests::bytes("noop");
    let reload = |bed: &mut Bed, settings: &str| {
        let config = config(settings);
        let mut refits = bed.shelf.refits(&config);
        for refit in &mut refits {
            if refit.needs().is_some() {
                refit.give(Some(noop.clone()));
            }
        }
        let refitted = refit(&refits, &bed.engine)?;
        bed.config = config;
        bed.shelf.commit(&refitted, &bed.registry);
        Ok::<_, String>(())
    };
    // A file.
    let mut bed = Bed::new("");
    bed.files.put("mail", &noop);
    bed.settle();
    let why = reload(&mut bed, &trust(&[&ours], true)).unwrap_err();
    assert!(
        why.starts_with("the plugin `mail` cannot serve with them: it is not signed"),
        "{why}"
    );
    reload(&mut bed, &trust(&[&ours], false)).unwrap();
    bed.put_signature(&sign(&ours, &noop));
    bed.settle();
    reload(&mut bed, &trust(&[&ours, &new], true)).unwrap();
    let why = reload(&mut bed, &trust(&[&new], true)).unwrap_err();
    assert!(why.contains("not among `keys`"), "{why}");
    bed.put_signature(&sign(&new, &noop));
    reload(&mut bed, &trust(&[&new], true)).unwrap();
    assert_eq!(bed.serves(), Some(digest(&noop)));
    // What serves is not there to be looked at.
    bed.files.put("mail", b"broken");
    let why = reload(&mut bed, &trust(&[&ours], true)).unwrap_err();
    assert!(why.contains("is not there any more"), "{why}");
    reload(&mut bed, "").unwrap();

    // A release.
    let mut bed = Bed::new(&trust(&[&ours, &new], true));
    bed.release(1, &noop, Some(sign(&ours, &noop)));
    let why = reload(&mut bed, &trust(&[&new], false)).unwrap_err();
    assert!(why.contains("not among `keys`"), "{why}");
    bed.release(2, &noop, Some(sign(&new, &noop)));
    reload(&mut bed, &trust(&[&new], true)).unwrap();
    assert_eq!(bed.serves(), Some(digest(&noop)));
}

#[test]
fn process_check_holds_files_against_pins_and_keys() {
    let (ours, theirs) = (keys(), keys());
    let noop = guests::bytes("noop");
    let folder = Folder::with(&[("mail", "noop"), ("plain", "noop"), ("bad", "noop")]);
    let here = |name: &str| folder.path().join(name);
    fs::write(here("mail.wasm.minisig"), sign(&ours, &noop)).unwrap();
    fs::write(here("bad.wasm.minisig"), sign(&theirs, &noop)).unwrap();
    let pins = format!("[plugins.mail]\nsha256 = '{}'\n", hex(&digest(&noop)));
    fs::write(here("runner.toml"), trust(&[&ours], true) + &pins).unwrap();
    let check = ["plugins", "check", "mail.wasm", "plain.wasm", "bad.wasm"];
    let output = run(None, folder.path(), &check);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stdout);
    let lines: Vec<_> = said.lines().skip(3).collect();
    assert_eq!(
        lines,
        [
            "  trust    pinned, signed: \"file:mail.wasm\"",
            "plain.wasm: refused: it is not signed, which `require_signature` under `[trust]` (runner.toml line 2) asks for",
            "  to do    sign it with `minisign -Sm NAME.wasm`: NAME.wasm.minisig lies beside the file, or goes with it when it is pushed to the fleet",
            "bad.wasm: refused: it is signed with a key that is not among `keys` under `[trust]` (runner.toml line 3)",
            "  to do    sign it with one of these, or add the public key if you trust its owner",
        ]
    );
    let output = run(
        None,
        folder.path(),
        &["plugins", "check", "--json", "mail.wasm"],
    );
    assert_eq!(output.status.code(), Some(0));
    let told: serde_json::Value = serde_json::from_str(&text(&output.stdout)).unwrap();
    assert_eq!(
        (&told[0]["pinned"], &told[0]["signed"]),
        (&true.into(), &"file:mail.wasm".into())
    );
    // Settings that could let nothing in are refused whole.
    fs::write(here("runner.toml"), "[trust]\nrequire_signature = true\n").unwrap();
    let output = run(None, folder.path(), &check);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("needs `trust.keys`"));
}
