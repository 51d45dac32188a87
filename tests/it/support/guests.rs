//! Guests, built before the tests by `scripts/guests.sh`, and plugin folders made of them.

use std::fs;
use std::path::{Path, PathBuf};

/// The bytes of a test guest (`probe`, `client`, `start_loop`) or a handler of `plugins/`.
pub(crate) fn bytes(name: &str) -> Vec<u8> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let target = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    // Test guests lie beside the folder for temporary files.
    let places = [
        root.join("target/guests").join(name),
        target.parent().unwrap().join("guests").join(name),
        root.join("plugins").join(name),
    ];
    places
        .iter()
        .find_map(|place| fs::read(place.with_extension("wasm")).ok())
        .unwrap_or_else(|| panic!("the guest `{name}` is not built: run scripts/guests.sh"))
}

/// The bytes of a component that stands as text in `tests/guests/NAME.wat`.
pub(crate) fn text(name: &str) -> Vec<u8> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/guests")
        .join(name)
        .with_extension("wat");
    wat::parse_file(file).unwrap()
}

/// A folder for one test, empty at first and removed with the value.
#[derive(Debug)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!(
            "test-{}-{:08x}",
            std::process::id(),
            fastrand::u32(..)
        ));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// A plugins folder: (job type, guest) each.
    pub(crate) fn with(guests: &[(&str, &str)]) -> Self {
        let folder = Self::new();
        for (job_type, guest) in guests {
            folder.put(job_type, &bytes(guest));
        }
        folder
    }

    /// Puts a plugin in, whole at once.
    pub(crate) fn put(&self, name: &str, content: &[u8]) {
        let temporary = self.0.join(format!(".{name}.tmp"));
        fs::write(&temporary, content).unwrap();
        fs::rename(&temporary, self.0.join(name).with_extension("wasm")).unwrap();
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
