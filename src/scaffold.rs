//! New projects for handlers: the folders `templates/`, `sdk/` and `wit/` of this repository, laid over each other.
//!
//! A project is written whole beside its place and moved there: a folder of that name is either finished or not there.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use include_dir::{Dir, DirEntry, include_dir};

static TEMPLATES: Dir<'static> = include_dir!("$CARGO_MANIFEST_DIR/templates");
static SDKS: Dir<'static> = include_dir!("$CARGO_MANIFEST_DIR/sdk");
static WORLD: Dir<'static> = include_dir!("$CARGO_MANIFEST_DIR/wit");

/// The longest name: it becomes a file, a crate and a job type.
const LONGEST: usize = 64;
/// What tools leave behind in the folders that are embedded.
const LITTER: [&str; 5] = [
    ".cargo",
    "target",
    "node_modules",
    "__pycache__",
    "Cargo.lock",
];

/// A language that there is a template for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// Rust.
    Rust,
    /// TypeScript on QuickJS.
    Typescript,
    /// JavaScript on QuickJS.
    Javascript,
    /// Python.
    Python,
    /// Go.
    Go,
    /// C.
    C,
    /// Zig.
    Zig,
}

/// Why there is no project.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The name is none.
    #[error(
        "`{0}` is no name for a handler: up to {LONGEST} of a to z, 0 to 9 and single hyphens between them, a letter first"
    )]
    Name(String),
    /// The name means something else to the language's tools.
    #[error(
        "`{0}` is a word of its own to some language's tools: choose another name, such as `{0}-job`"
    )]
    Reserved(String),
    /// There is something where it would be.
    #[error("`{0}` is there already and stays as it is: choose another name, or remove it first")]
    Exists(PathBuf),
    /// It cannot be written.
    #[error("cannot write `{0}`: {1}")]
    Write(PathBuf, io::Error),
}

/// Names that break a build: keywords and standard modules of the languages, and what the projects themselves contain.
const RESERVED: [&str; 48] = [
    "abstract",
    "app",
    "as",
    "async",
    "await",
    "box",
    "break",
    "build",
    "c",
    "const",
    "continue",
    "core",
    "crate",
    "do",
    "dyn",
    "else",
    "enum",
    "extern",
    "false",
    "final",
    "fn",
    "for",
    "handler",
    "if",
    "impl",
    "in",
    "let",
    "loop",
    "main",
    "match",
    "mod",
    "move",
    "override",
    "piecework",
    "piecework-handler",
    "plugins",
    "proc-macro",
    "pub",
    "self",
    "std",
    "struct",
    "test",
    "tests",
    "true",
    "type",
    "use",
    "where",
    "wit",
];

impl Language {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Rust,
        Self::Typescript,
        Self::Javascript,
        Self::Python,
        Self::Go,
        Self::C,
        Self::Zig,
    ];

    /// Its name, as in `--lang`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rust => "rust",
            Self::Typescript => "typescript",
            Self::Javascript => "javascript",
            Self::Python => "python",
            Self::Go => "go",
            Self::C => "c",
            Self::Zig => "zig",
        }
    }

    /// Which SDK it has, and where in a project that lies.
    fn sdk(self) -> (&'static str, &'static str) {
        match self {
            Self::Rust => ("rust", "piecework"),
            Self::Go => ("go", "piecework"),
            Self::Typescript => ("javascript", ""),
            Self::Javascript | Self::Python | Self::C | Self::Zig => (self.as_str(), ""),
        }
    }
}

/// A file of a project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Where it lies in the project.
    pub path: PathBuf,
    /// What is in it.
    pub content: Vec<u8>,
    /// Whether it is to be run.
    pub executable: bool,
}

impl File {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.content).into_owned()
    }
}

fn is_notes(file: &File) -> bool {
    file.path == Path::new("notes.md")
}

/// The files of a project.
///
/// # Errors
/// When the name is none.
pub fn files(name: &str, language: Language) -> Result<Vec<File>, Error> {
    check(name)?;
    let mut files: Vec<File> = Vec::new();
    let mut lay = |folder: Option<&Dir<'_>>, at: &str| {
        for file in folder.into_iter().flat_map(Dir::entries) {
            gather(file, Path::new(at), name, &mut files);
        }
    };
    let (sdk, at) = language.sdk();
    lay(TEMPLATES.get_dir("common"), "");
    lay(TEMPLATES.get_dir(language.as_str()), "");
    lay(SDKS.get_dir(sdk), at);
    lay(Some(&WORLD), "wit");
    // What the README says of the language.
    let (notes, mut files): (Vec<_>, Vec<_>) = files.into_iter().partition(is_notes);
    let notes = notes.first().map_or_else(String::new, File::text);
    for file in files
        .iter_mut()
        .filter(|file| file.path == Path::new("README.md"))
    {
        file.content = file
            .text()
            .replace("@NOTES@", notes.trim_end())
            .into_bytes();
    }
    Ok(files)
}

fn check(name: &str) -> Result<(), Error> {
    let fits = name.len() <= LONGEST
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && !name.ends_with('-')
        && !name.contains("--")
        && name
            .chars()
            .all(|char| char.is_ascii_lowercase() || char.is_ascii_digit() || char == '-');
    if !fits {
        return Err(Error::Name(name.to_owned()));
    }
    if RESERVED.contains(&name) {
        return Err(Error::Reserved(name.to_owned()));
    }
    Ok(())
}

/// A file, or all files of a folder, with the name put in. A later file takes the place of an earlier one.
fn gather(entry: &DirEntry<'_>, at: &Path, name: &str, files: &mut Vec<File>) {
    let own = entry
        .path()
        .file_name()
        .unwrap_or_default()
        .to_string_lossy();
    if LITTER.contains(&&*own) {
        return;
    }
    match entry {
        DirEntry::Dir(folder) => {
            for inner in folder.entries() {
                gather(inner, &at.join(&*own), name, files);
            }
        }
        DirEntry::File(file) => {
            let own = match &*own {
                "gitignore" => ".gitignore",
                own => own.strip_suffix(".in").unwrap_or(own),
            };
            let path = at.join(own);
            let content = match file.contents_utf8() {
                Some(text) => text
                    .replace("@NAME@", name)
                    .replace("@NAME_SNAKE@", &name.replace('-', "_"))
                    .into_bytes(),
                None => file.contents().to_vec(),
            };
            files.retain(|file| file.path != path);
            files.push(File {
                executable: own.ends_with(".sh"),
                path,
                content,
            });
        }
    }
}

/// Writes a project into a new folder of this name in `parent`, and returns that folder.
///
/// # Errors
/// When the name is none, the folder is there already, or it cannot be written; then nothing of it is left.
pub fn create(parent: &Path, name: &str, language: Language) -> Result<PathBuf, Error> {
    let files = files(name, language)?;
    let folder = parent.join(name);
    let exists = || Error::Exists(folder.clone());
    // A link that leads nowhere is something, too.
    if folder.symlink_metadata().is_ok() {
        return Err(exists());
    }
    let beside = parent.join(format!(".{name}.{}.tmp", std::process::id()));
    let written = write(&beside, &files).and_then(|()| {
        // An empty folder that came in between would be taken over, everything else is an error: nothing is lost either way.
        fs::rename(&beside, &folder).map_err(|error| Error::Write(folder.clone(), error))
    });
    if let Err(error) = written {
        let _ = fs::remove_dir_all(&beside);
        return Err(if folder.symlink_metadata().is_ok() {
            exists()
        } else {
            error
        });
    }
    Ok(folder)
}

fn write(folder: &Path, files: &[File]) -> Result<(), Error> {
    for file in files {
        let path = folder.join(&file.path);
        let written = path
            .parent()
            .map_or(Ok(()), fs::create_dir_all)
            .and_then(|()| fs::write(&path, &file.content))
            .and_then(|()| {
                if file.executable {
                    executable(&path)?;
                }
                Ok(())
            });
        written.map_err(|error| Error::Write(path, error))?;
    }
    Ok(())
}

fn executable(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let mut permissions = fs::metadata(path)?.permissions();
    // For whoever may read it.
    let mode = permissions.mode();
    permissions.set_mode(mode | ((mode & 0o444) >> 2));
    fs::set_permissions(path, permissions)
}
