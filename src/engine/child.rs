//! All but small components are compiled in a process of their own: the same program, started for one component. Compiling takes seconds of all
//! cores and hundreds of MiB, and a component can be made so that it takes minutes and all memory, or ends the compiler; none of
//! that must reach the process that holds the leases.
//!
//! ```text
//!   this process                               the child
//!   starts it ─────────────────────────────▶   limits itself, makes an engine of the same settings
//!                   ◀── GREETING ───────────   (from here on what goes wrong is the component's doing)
//!   length, bytes ─────────────────────────▶   compiles; ends when this pipe closes: nobody waits for it any more
//!                   ◀── kind, length, bytes    the compiled form, or the compiler's error
//! ```

use std::io::{self, Read, Write};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, setpriority_pgrp, setrlimit};

use crate::config;

/// From this size on a component is large: not by what compiling it takes as a rule, but by what it can be made to take. Nested
/// blocks of 61 kB take 1 s of computing, of 121 kB 4 s, of 750 kB more than 2 minutes, and 800 kB of calls take 970 MB (dev profile). A
/// child for 1.2 MB of data and no code took less than 50 ms in all.
pub(super) const LARGE: usize = 64 * 1024;
/// The most that a compiled form may have; it is 2 to 3 times as large as the component, and 48 MB was the largest seen.
const MAX_COMPILED: u64 = 256 * 1024 * 1024;
/// How much of the child's last words is kept.
const MAX_WORDS: u64 = 16 * 1024;
/// It gives way to what runs jobs: beside others without room to spare it gets a tenth of theirs.
const NICE: i32 = 10;
/// Components below this size are wanted soon and take less than a second as a rule: they give way only after [`AT_FIRST`].
const SLOW: usize = 1024 * 1024;
const AT_FIRST: Duration = Duration::from_secs(2);
/// Each thread of the compiler has a function in hand, and the memory for it: 64 of them took 40 to 55 MiB more than 2 for small functions.
/// What fits within the limit should not hang on the machine.
const MAX_THREADS: usize = 8;

const GREETING: &[u8] = b"piecework compiles\n";
const COMPILED: u8 = 1;
const INVALID: u8 = 2;

/// What came of it.
#[derive(Debug)]
pub(super) enum Answer {
    /// The compiled form, as `Component::serialize` would give it.
    Compiled(Vec<u8>),
    /// The compiler's own error.
    Invalid(String),
    /// The compiler did not survive the component, or was not let go on: why.
    Died(String),
}

/// How to start the child.
#[derive(Debug)]
pub(super) struct Compiler {
    program: PathBuf,
    warned: AtomicBool,
}

impl Compiler {
    pub(super) fn new(program: &Path) -> Self {
        Self {
            program: program.to_owned(),
            warned: AtomicBool::new(false),
        }
    }

    /// Says once that all components are compiled in this process, and why.
    pub(super) fn warn(&self, error: &anyhow::Error) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                error = format!("{error:#}"),
                "components of any size are compiled in this process, with nothing that bounds their memory: no process of their own can be started"
            );
        }
    }

    /// Compiles a component in a child.
    ///
    /// # Errors
    /// When there is no child that could: it does not start, or is another program. It has not seen the component then.
    pub(super) fn compile(
        &self,
        settings: &config::Engine,
        fuel: bool,
        bytes: &[u8],
    ) -> anyhow::Result<Answer> {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let mut command = Command::new(&self.program);
        command
            .arg0("piecework")
            .arg("compile-component")
            .arg("--engine")
            .arg(serde_json::to_string(settings)?)
            // No address of a database, no secret.
            .env_clear()
            .env("RAYON_NUM_THREADS", threads.min(MAX_THREADS).to_string())
            .current_dir("/")
            // Ctrl-C is for this process, which then lets it go; it must not look like a component's doing.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if fuel {
            command.arg("--fuel");
        }
        tracing::debug!(
            bytes = bytes.len(),
            "a component is compiled in a process of its own"
        );
        let spawned = command.spawn();
        let child = spawned.with_context(|| format!("start `{}`", self.program.display()))?;
        converse(child, settings, bytes)
    }
}

/// A child that does not outlive this value.
struct Kill(Child);

impl Drop for Kill {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the child said before its output ended.
enum Said {
    Nothing,
    Greeting,
    Answer(Answer),
}

fn converse(mut child: Child, settings: &config::Engine, bytes: &[u8]) -> anyhow::Result<Answer> {
    let longest = settings.compile_timeout.0;
    let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    thread::scope(|scope| {
        // Killed before the scope waits for its threads, whatever happens here: then their pipes end.
        let mut child = Kill(child);
        let (Some(mut stdin), Some(stdout), Some(stderr)) = pipes else {
            anyhow::bail!("the child has no pipes");
        };
        let (ended, end) = mpsc::channel::<()>();
        let named = |name: &str| thread::Builder::new().name(name.to_owned());
        let writer = named("compile-in").spawn_scoped(scope, move || {
            let length = (bytes.len() as u64).to_le_bytes();
            // It may have ended. The pipe stays open: its end would be the child's.
            let _ = stdin
                .write_all(&length)
                .and_then(|()| stdin.write_all(bytes));
            stdin
        })?;
        let words = named("compile-err").spawn_scoped(scope, move || last_words(stderr))?;
        let reader = named("compile-out").spawn_scoped(scope, move || {
            let said = listen(stdout);
            drop(ended);
            said
        })?;
        let at_first = if bytes.len() < SLOW {
            AT_FIRST.min(longest)
        } else {
            Duration::ZERO
        };
        let mut heard = end.recv_timeout(at_first);
        if heard == Err(RecvTimeoutError::Timeout) {
            // All its threads: it is a group of its own.
            let _ = setpriority_pgrp(Some(Pid::from_child(&child.0)), NICE);
            heard = end.recv_timeout(longest.saturating_sub(at_first));
        }
        let late = heard == Err(RecvTimeoutError::Timeout);
        // One whose output has ended has said everything, or is ending by itself, which this does not change.
        let _ = child.0.kill();
        let status = child.0.wait()?;
        drop(writer.join());
        let words = words.join().unwrap_or_default();
        match reader.join().unwrap_or(Said::Nothing) {
            Said::Answer(answer) => Ok(answer),
            Said::Greeting if late => Ok(Answer::Died(format!(
                "compiling it takes longer than {}: if you trust it, raise `compile_timeout` under `[engine]` in runner.toml",
                humantime::format_duration(longest)
            ))),
            Said::Greeting => Ok(Answer::Died(cause(status, &words, settings))),
            Said::Nothing => anyhow::bail!("it does not compile components ({status}): {words}"),
        }
    })
}

/// Reads the answer, bounded.
fn listen(mut stdout: impl Read) -> Said {
    let mut greeting = [0; GREETING.len()];
    if stdout.read_exact(&mut greeting).is_err() || greeting != GREETING {
        return Said::Nothing;
    }
    let mut head = [0; 9];
    if stdout.read_exact(&mut head).is_err() {
        return Said::Greeting;
    }
    let [kind, length @ ..] = head;
    let length = u64::from_le_bytes(length);
    if length > MAX_COMPILED {
        return Said::Answer(Answer::Died(format!(
            "its compiled form has {length} bytes, the limit is {MAX_COMPILED}"
        )));
    }
    let mut body = Vec::new();
    let read = stdout.take(length).read_to_end(&mut body);
    if read.ok().map(|read| read as u64) != Some(length) {
        return Said::Greeting;
    }
    match kind {
        COMPILED => Said::Answer(Answer::Compiled(body)),
        INVALID => Said::Answer(Answer::Invalid(String::from_utf8_lossy(&body).into_owned())),
        // Not left to how it ends: it is ended before it may have done so by itself.
        _ => Said::Answer(Answer::Died(
            "the compiler's answer was not understood".to_owned(),
        )),
    }
}

/// The beginning of what it wrote on standard error, all of it read.
fn last_words(mut stderr: impl Read) -> String {
    let mut words = Vec::new();
    let _ = stderr.by_ref().take(MAX_WORDS).read_to_end(&mut words);
    let _ = io::copy(&mut stderr, &mut io::sink());
    let words = String::from_utf8_lossy(&words);
    let words: Vec<_> = words.split_whitespace().collect();
    words.join(" ").chars().take(300).collect()
}

fn cause(status: ExitStatus, words: &str, settings: &config::Engine) -> String {
    if words.contains("memory allocation of") || words.contains("Cannot allocate memory") {
        return format!(
            "compiling it takes more than {} of memory: if you trust it, raise `compile_memory` under `[engine]` in runner.toml",
            serde_json::to_value(settings.compile_memory)
                .ok()
                .and_then(|size| size.as_str().map(str::to_owned))
                .unwrap_or_default()
        );
    }
    let ended = match status.signal() {
        Some(9) => "was killed, perhaps because the machine had no memory left".to_owned(),
        Some(signal) => format!("was ended by signal {signal}"),
        None => format!("gave up ({status})"),
    };
    let words = if words.is_empty() {
        String::new()
    } else {
        format!(": {words}")
    };
    format!("the compiler {ended} while compiling it{words}")
}

/// The child's side: one component from `input`, the answer to `output`. For a process that does nothing else: all other files in it
/// are closed.
///
/// # Errors
/// When it cannot limit itself, or nobody reads its answer.
pub fn compile_for_parent(
    settings: &config::Engine,
    fuel: bool,
    mut input: impl Read + Send + 'static,
    mut output: impl Write,
) -> anyhow::Result<()> {
    close_inherited();
    limit(settings)?;
    let engine = super::compiler(settings, fuel)?;
    output.write_all(GREETING)?;
    output.flush()?;
    let mut length = [0; 8];
    input.read_exact(&mut length)?;
    let mut bytes = Vec::new();
    let length = u64::from_le_bytes(length);
    let read = input.by_ref().take(length).read_to_end(&mut bytes)?;
    anyhow::ensure!(read as u64 == length, "the component ends too early");
    thread::Builder::new()
        .name("parent".to_owned())
        .spawn(move || end_with(input))?;
    let (kind, body) = match engine.precompile_component(&bytes) {
        Ok(compiled) => (COMPILED, compiled),
        Err(error) => (INVALID, error.root_cause().to_string().into_bytes()),
    };
    output.write_all(&[kind])?;
    output.write_all(&(body.len() as u64).to_le_bytes())?;
    output.write_all(&body)?;
    output.flush()?;
    Ok(())
}

/// Ends this process when the one that waits for it has gone.
#[expect(
    clippy::exit,
    reason = "the compiler cannot be told to stop, and what it computes is of no use any more"
)]
fn end_with(mut input: impl Read) {
    let _ = input.read(&mut [0]);
    std::process::exit(1);
}

/// Closes all but the three pipes. Files of the parent close by themselves; those that the parent itself was started with may not.
#[expect(
    unsafe_code,
    reason = "close ends what may belong to somebody: in a process that has only parsed its arguments nobody has a file"
)]
fn close_inherited() {
    // All numbers before the first is closed: one of them is this folder's.
    let open: Vec<i32> = std::fs::read_dir("/dev/fd")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    let still = |file: &i32| std::fs::symlink_metadata(format!("/dev/fd/{file}")).is_ok();
    for file in open.into_iter().filter(|file| *file > 2 && still(file)) {
        // SAFETY: see the reason above.
        unsafe { rustix::io::close(file) };
    }
}

/// Of what is allowed it takes less, and never more.
fn limit(settings: &config::Engine) -> anyhow::Result<()> {
    let lower = |resource, most: u64| {
        let hard = getrlimit(resource).maximum;
        let most = Some(hard.map_or(most, |hard| hard.min(most)));
        setrlimit(
            resource,
            Rlimit {
                current: most,
                maximum: most,
            },
        )
    };
    // What is written to counts, not the address space, of which each thread sets some aside.
    lower(Resource::Data, settings.compile_memory.0).context("limit the memory")?;
    lower(Resource::Core, 0).context("limit what is left after a crash")?;
    // Where the machine's memory ends, this process is the one to go, before the runner or the database. Only Linux has that.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    // Of no file is there anything to be written from here on; pipes are none.
    lower(Resource::Fsize, 0).context("limit what is written")?;
    Ok(())
}
