//! Versions of a component and ways of bringing them into a plugins folder, on more than one file system.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// The component with a custom section of this many bytes more: another version that does the same.
pub(crate) fn version(component: &[u8], name: &str, padding: usize) -> Vec<u8> {
    let mut bytes = component.to_vec();
    let mut section = leb(name.len());
    section.extend(name.as_bytes());
    section.resize(section.len() + padding, b'x');
    bytes.push(0);
    bytes.extend(leb(section.len()));
    bytes.extend(section);
    bytes
}

fn leb(mut number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = u8::try_from(number & 0x7f).unwrap();
        number >>= 7;
        if number == 0 {
            bytes.push(low);
            return bytes;
        }
        bytes.push(low | 0x80);
    }
}

/// Copies over the file in place in this many steps with pauses between them, and a longer one in the middle. Returns when the last
/// byte was written.
pub(crate) fn copy_slowly(
    bytes: &[u8],
    to: &Path,
    steps: usize,
    pause: Duration,
    middle: Duration,
) -> Instant {
    let mut file = File::create(to).unwrap();
    for (step, chunk) in bytes.chunks(bytes.len().div_ceil(steps)).enumerate() {
        if step > 0 {
            #[expect(clippy::disallowed_methods, reason = "on a thread of its own")]
            thread::sleep(if step == steps / 2 { middle } else { pause });
        }
        file.write_all(chunk).unwrap();
    }
    Instant::now()
}

/// A folder removed with the value.
#[derive(Debug)]
pub(crate) struct Place(PathBuf);

impl Place {
    /// A new folder on each file system of interest: where the tests are built, and in memory.
    pub(crate) fn all() -> Vec<Self> {
        let mut roots = vec![PathBuf::from(env!("CARGO_TARGET_TMPDIR"))];
        let memory = Path::new("/dev/shm");
        if fs::metadata(memory).is_ok_and(|metadata| !metadata.permissions().readonly()) {
            roots.push(memory.into());
        } else {
            eprintln!("skipped on tmpfs: there is no /dev/shm to write to");
        }
        roots.iter().map(|root| Self::on(root)).collect()
    }

    fn on(root: &Path) -> Self {
        let name = format!("piecework-{}-{:08x}", std::process::id(), fastrand::u32(..));
        let path = root.join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name).with_extension("wasm")
    }

    /// Puts a plugin in, whole at once. Returns when.
    pub(crate) fn put(&self, name: &str, bytes: &[u8]) -> Instant {
        let temporary = self.0.join(format!(".{name}.tmp"));
        fs::write(&temporary, bytes).unwrap();
        fs::rename(&temporary, self.file(name)).unwrap();
        Instant::now()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
