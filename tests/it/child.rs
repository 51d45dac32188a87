//! Large components are compiled in a process of their own: jobs go on as if nothing were, and what ends the compiler ends nothing else.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use piecework::config::Config;
use piecework::engine::{Engine, Handler, Refusal};
use piecework::job::JobType;
use piecework::plugins::{Registry, Shelf, State};
use rustix::process::{Pid, Signal, kill_process};

use super::support::guests::Folder;
use super::support::large::{leb, module, nest, noop_with, ordinary};
use super::support::process::command;
use super::support::until;

const PROGRAM: &str = env!("CARGO_BIN_EXE_piecework");

fn compile_by(
    program: &Path,
    component: &[u8],
    settings: &str,
    fuel: bool,
) -> Result<Handler, Refusal> {
    let settings = format!("[engine]\ncache = 'off'\n{settings}");
    let mut config = Config::parse(&settings, Path::new("runner.toml")).unwrap();
    config.program = Some(program.to_owned());
    Engine::new(&config, 1).unwrap().compile(component, fuel)
}

fn compile(component: &[u8], settings: &str) -> Result<Handler, Refusal> {
    compile_by(Path::new(PROGRAM), component, settings, false)
}

/// Large by its data, so that the compiler has nothing to do.
fn idle() -> Vec<u8> {
    noop_with(&module(&[ordinary(0, 1)], 1_200_000))
}

/// A program that does this in place of compiling.
fn program(folder: &Folder, script: &str) -> PathBuf {
    let path = folder.path().join("program");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
    path
}

const GREETING: &str = "printf 'piecework compiles\\n'\n";

#[test]
fn process_what_the_child_compiles_is_taken_under_all_settings() {
    let files = Folder::new();
    files.put("idle", &idle());
    for settings in [
        "[engine]",
        "[defaults]\nfuel = 1000000\n[engine]",
        "[engine]\ngc = true\nstack = '1MiB'\ntick = '10ms'",
        "[defaults]\nfuel = 1000000\n[engine]\npooling = false",
    ] {
        let settings = format!("{settings}\ncache = 'off'\n");
        fs::write(files.path().join("runner.toml"), settings).unwrap();
        let mut check = command();
        check.args(["--log-level", "debug", "plugins", "check", "idle.wasm"]);
        let check = check.current_dir(files.path()).output().unwrap();
        let said = String::from_utf8_lossy(&check.stderr);
        assert!(check.status.success(), "{said}");
        assert!(said.contains("compiled in a process of its own"), "{said}");
        assert!(!said.contains("compiled in this process"), "{said}");
    }
}

#[test]
fn the_compilers_own_error_reads_the_same_from_the_child() {
    let broken = noop_with(&module(&[[vec![0x6a; 1_200_000], vec![0x0b]].concat()], 0));
    let there = compile(&broken, "").unwrap_err().to_string();
    let config = Config::default();
    let here = Engine::new(&config, 1).unwrap().compile(&broken, false);
    assert_eq!(there, here.unwrap_err().to_string());
    assert!(there.starts_with("it is no valid component: "), "{there}");
}

#[test]
fn without_a_child_it_is_compiled_here() {
    let files = Folder::new();
    for stranger in [
        files.path().join("missing"),
        program(&files, "exit 2"),
        program(&files, "echo hello"),
        program(&files, "kill -9 $$"),
        // It has another version of the compiler.
        program(
            &files,
            &format!("{GREETING}printf '\\1\\3\\0\\0\\0\\0\\0\\0\\0ELF'; cat > /dev/null"),
        ),
    ] {
        compile_by(&stranger, &idle(), "", false).unwrap();
    }
}

#[test]
fn a_compiler_that_dies_is_not_tried_again_here() {
    let files = Folder::new();
    for (script, reason) in [
        ("kill -9 $$", "was killed, perhaps because"),
        (
            "echo oh dear >&2; kill -11 $$",
            "ended by signal 11 while compiling it: oh dear",
        ),
        (
            "echo panicked >&2; exit 101",
            "(exit status: 101) while compiling it: panicked",
        ),
        (
            "echo memory allocation of 9 bytes failed >&2; kill -6 $$",
            "more than 2GiB of memory",
        ),
        // Less than was announced, more than is taken, and an unknown kind.
        ("printf '\\1\\3\\0\\0\\0\\0\\0\\0\\0EL'", "gave up"),
        (
            "printf '\\1\\0\\0\\0\\0\\1\\0\\0\\0'; exec cat /dev/zero",
            "the limit is 268435456",
        ),
        (
            "printf '\\7\\0\\0\\0\\0\\0\\0\\0\\0'",
            "answer was not understood",
        ),
        ("exec sleep 100", "takes longer than 1s"),
        ("exec >&-; exec sleep 100", "was killed"),
        ("while echo spam >&2; do :; done", "takes longer than 1s"),
    ] {
        let program = program(&files, &format!("{GREETING}{script}"));
        let answer = compile_by(&program, &idle(), "compile_timeout = '1s'\n", false);
        let text = answer.unwrap_err().to_string();
        assert!(text.contains(reason), "{script}: {text}");
    }
}

#[test]
fn the_child_is_given_no_environment() {
    let files = Folder::new();
    let spy = program(&files, "env > $0.env; pwd > $0.pwd; exit 1");
    compile_by(&spy, &idle(), "", false).unwrap();
    let said = |what: &str| fs::read_to_string(spy.with_extension(what)).unwrap();
    // What the shell sets itself.
    let own = ["PWD", "OLDPWD", "SHLVL", "_"];
    let environment = said("env");
    let given = environment.lines().filter(|line| {
        let name = line.split('=').next().unwrap_or_default();
        !own.contains(&name)
    });
    // How many threads it has is no secret.
    let given: Vec<_> = given.map(|line| line.split_once('=').unwrap()).collect();
    let [("RAYON_NUM_THREADS", threads)] = given[..] else {
        panic!("{given:?}");
    };
    assert!((1..=8).contains(&threads.parse().unwrap()), "{threads}");
    assert_eq!(said("pwd"), "/\n");
}

#[test]
fn a_compile_bomb_is_refused_and_this_process_stays_small() {
    let tiny = noop_with(&module(&vec![vec![0x20, 0, 0x0b]; 500_000], 0));
    let body = noop_with(&module(&[ordinary(0, 250_000)], 0));
    let calls = [vec![0x20, 0], [0x10, 0].repeat(400_000), vec![0x0b]].concat();
    let calls = noop_with(&module(&[calls], 0));
    let (late, greedy) = ("takes longer than 2s", "takes more than 256MiB of memory");
    for (bomb, settings, reason) in [
        (nest(2_000_000), "compile_timeout = '2s'\n", late),
        // Bombs need not be large.
        (nest(250_000), "compile_timeout = '2s'\n", late),
        (body, "compile_timeout = '2s'\n", late),
        (tiny, "compile_memory = '256MiB'\n", greedy),
        (calls, "compile_memory = '256MiB'\n", greedy),
        // Types are read in this process.
        (noop_with(&types(1_000_000)), "", "more than 200000 types"),
    ] {
        let text = compile(&bomb, settings).unwrap_err().to_string();
        assert!(text.contains(reason), "{text}");
    }
    // In this test, and those before it where they share a process.
    if let Ok(status) = fs::read_to_string("/proc/self/status") {
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = peak.and_then(|peak| peak.split_whitespace().next());
        let kib: u64 = kib.unwrap().parse().unwrap();
        assert!(kib < 256 * 1024, "{kib} KiB");
    }
}

/// A core module of so many types, each another one.
fn types(count: usize) -> Vec<u8> {
    let mut types = Vec::new();
    leb(&mut types, count);
    for number in 0..count {
        let parameter = |at: usize| [0x7f, 0x7e, 0x7d, 0x7c][number >> (2 * at) & 3];
        types.extend([0x60, 10]);
        types.extend((0..10).map(parameter));
        types.push(0);
    }
    let mut module = b"\0asm\x01\0\0\0\x01".to_vec();
    leb(&mut module, types.len());
    module.extend(types);
    module
}

#[test]
fn a_compile_bomb_is_not_tried_again_until_its_file_changes() {
    let files = Folder::with(&[("mail", "noop")]);
    let tries = files.path().join("program.tries");
    let script = format!("echo >> $0.tries; {GREETING}kill -9 $$");
    let settings = "[engine]\ncache = 'off'\n";
    let mut config = Config::parse(settings, Path::new("runner.toml")).unwrap();
    config.program = Some(program(&files, &script));
    let engine = Engine::new(&config, 1).unwrap();
    let registry = Registry::default();
    let mut shelf = Shelf::open(files.path()).unwrap();
    let mut settle = || {
        // What changed is taken once it has stayed the same.
        for _ in 0..5 {
            shelf.scan(&engine, &config, &registry).unwrap();
        }
        let states = shelf.states(&config);
        let mail = states.iter().find(|state| state.name == "mail").unwrap();
        let tries = fs::read_to_string(&tries).map_or(0, |tries| tries.lines().count());
        (mail.state, mail.reason.clone().unwrap_or_default(), tries)
    };
    assert_eq!(settle(), (State::Serving, String::new(), 0));
    let serves = |registry: &Registry| {
        let plugin = registry.find(&JobType::from("mail")).unwrap();
        plugin.handler.version()
    };
    let before = serves(&registry);
    for bomb in 1..=2 {
        files.put("mail", &noop_with(&module(&[ordinary(bomb, 1)], 100_000)));
        let (state, reason, tries) = settle();
        assert_eq!((state, tries), (State::Refused, bomb));
        assert!(reason.contains("the compiler was killed"), "{reason}");
        assert_eq!(settle().2, bomb, "tried again");
        assert_eq!(serves(&registry), before);
    }
}

#[test]
fn a_file_that_is_too_large_is_not_even_read() {
    let files = Folder::new();
    let huge = fs::File::create(files.path().join("huge.wasm")).unwrap();
    // It takes no room.
    huge.set_len(1 << 40).unwrap();
    let config = Config::default();
    let engine = Engine::new(&config, 1).unwrap();
    let mut shelf = Shelf::open(files.path()).unwrap();
    shelf.scan(&engine, &config, &Registry::default()).unwrap();
    let states = shelf.states(&config);
    let reason = states[0].reason.clone().unwrap();
    assert!(reason.contains("the limit is 268435456"), "{reason}");
}

/// The processes whose parent is this one.
fn children(parent: u32) -> Vec<i32> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let of_parent = processes.filter_map(|entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        let mut fields = stat.rsplit(')').next()?.split_whitespace().skip(1);
        (fields.next()? == parent.to_string()).then_some(pid)
    });
    of_parent.collect()
}

#[tokio::test]
async fn process_a_child_gives_way_is_bounded_and_ends_with_its_parent() {
    let files = Folder::new();
    files.put("nest", &nest(2_000_000));
    let check = command();
    // A file that whoever starts the program left open.
    let program = check.get_program().to_owned();
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "exec 7</dev/null; exec \"$0\" \"$@\""]);
    shell.arg(program).args(["plugins", "check", "nest.wasm"]);
    let variables = check.get_envs();
    shell.envs(variables.filter_map(|(name, value)| Some((name, value?))));
    let mut check = shell;
    check.current_dir(files.path()).stdout(Stdio::null());
    let mut check = check.spawn().unwrap();
    let child = until("the child to compile", || async {
        let child = children(check.id()).pop()?;
        // Seconds of computing are not before it limited itself.
        let limits = fs::read_to_string(format!("/proc/{child}/limits")).ok()?;
        limits
            .lines()
            .any(|line| line.starts_with("Max data size") && line.contains("2147483648"))
            .then_some(child)
    })
    .await;
    let about = |what: &str| fs::read_to_string(format!("/proc/{child}/{what}")).unwrap();
    let environment = about("environ");
    let given = environment.trim_end_matches('\0');
    assert!(
        given.starts_with("RAYON_NUM_THREADS=") && !given.contains('\0'),
        "{given}"
    );
    let open = fs::read_dir(format!("/proc/{child}/fd")).unwrap();
    let mut open: Vec<_> = open.map(|entry| entry.unwrap().file_name()).collect();
    open.sort();
    assert_eq!(open, ["0", "1", "2"]);
    let field = |stat: &str, at: usize| {
        let mut fields = stat.rsplit(')').next()?.split_whitespace();
        fields.nth(at)?.parse::<i64>().ok()
    };
    until("the child to give way, with all its threads", || async {
        let threads = fs::read_dir(format!("/proc/{child}/task")).ok()?;
        let mut nice = threads.flatten().map(|thread| {
            let stat = fs::read_to_string(thread.path().join("stat")).ok()?;
            field(&stat, 16)
        });
        nice.all(|nice| nice == Some(10)).then_some(())
    })
    .await;
    assert_eq!(
        field(&about("stat"), 2),
        Some(i64::from(child)),
        "its group"
    );
    assert_eq!(about("oom_score_adj"), "1000\n");
    kill_process(Pid::from_child(&check), Signal::KILL).unwrap();
    check.wait().unwrap();
    until("the child's end", || async {
        let gone = fs::read_to_string(format!("/proc/{child}/stat"))
            .map_or(true, |stat| stat.contains(") Z "));
        gone.then_some(())
    })
    .await;
}
