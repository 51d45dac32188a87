//! Components held against the table: what they lack here, and what their authors or the operator can do about it.

use super::{Name, PACKAGE, Package, RELEASED, World, of, packages, wasi};
use crate::engine::refusal::{Lack, Refusal};
use crate::engine::shape::{Item, Shape};

/// What this import lacks here, if anything.
pub(in crate::engine) fn lack(item: &Item) -> Option<Lack> {
    // A type of an interface, under a name of the component's own.
    if item.kind == "type" {
        return None;
    }
    let Some(name) = Name::of(&item.name) else {
        return Some(Lack {
            import: item.name.clone(),
            wanted: None,
            offered: Vec::new(),
            package: Vec::new(),
            functions: Vec::new(),
            remedy: compose(),
        });
    };
    let known: Vec<_> = packages()
        .filter(|package| package.name == name.package)
        .collect();
    // The newest first, as the linker has it.
    let fitting = known
        .iter()
        .rev()
        .find(|package| name.fits(package.version))
        .and_then(|package| package.interface(&name.interface));
    let functions: Vec<_> = match fitting.map(|interface| interface.functions) {
        // What the table does not know is left to the linker.
        Some(None) => return None,
        Some(Some(offered)) => item
            .functions
            .iter()
            .filter(|function| !offered.contains(&function.as_str()))
            .cloned()
            .collect(),
        None => Vec::new(),
    };
    if fitting.is_some() && functions.is_empty() {
        return None;
    }
    let versions = |of: &dyn Fn(&Package) -> bool| {
        let found = known.iter().filter(|package| of(package));
        found.map(|package| package.version.to_owned()).collect()
    };
    Some(Lack {
        import: item.name.clone(),
        offered: versions(&|package| package.interface(&name.interface).is_some()),
        package: versions(&|_| true),
        functions,
        remedy: match (name.package.as_str(), known.is_empty()) {
            (PACKAGE, _) => build_for(name.version.as_deref()),
            (_, false) => wasi::remedy(&name.package, &name.interface),
            (_, true) => compose(),
        },
        wanted: name.version,
    })
}

/// The world of handlers that are built now.
fn newest() -> String {
    RELEASED.last().map_or_else(String::new, World::name)
}

/// What to do with a component that was built for this version of the worlds' package.
fn build_for(wanted: Option<&str>) -> String {
    let build = format!(
        "build it against {} (the wit folder of this release)",
        newest()
    );
    let released = |version| {
        RELEASED
            .iter()
            .any(|world| Some(world.package.version) == version)
    };
    if wanted.is_none() || released(wanted) {
        return build;
    }
    format!("it is built for another release: update the runners to that, or {build}")
}

fn compose() -> String {
    "the host has nothing of that name: leave it out of the build, or compose the component with one that exports it".to_owned()
}

/// Names all that is lacking, in one line.
pub(in crate::engine) fn refuse(lacks: Vec<Lack>) -> Refusal {
    /// More than these are not named.
    const MOST: usize = 12;
    let mut named: Vec<_> = lacks.iter().take(MOST).map(Lack::named).collect();
    if lacks.len() > MOST {
        named.push(format!("{} more", lacks.len() - MOST));
    }
    let mut remedies: Vec<(&str, Vec<String>)> = Vec::new();
    for lack in &lacks {
        let import = format!("`{}`", lack.import);
        match remedies
            .iter_mut()
            .find(|(remedy, _)| *remedy == lack.remedy)
        {
            Some((_, imports)) => imports.push(import),
            None => remedies.push((&lack.remedy, vec![import])),
        }
    }
    let remedy = match remedies.as_slice() {
        [(only, _)] => (*only).to_owned(),
        several => several
            .iter()
            .take(MOST)
            .map(|(remedy, imports)| match imports.as_slice() {
                [import] => format!("{import}: {remedy}"),
                [first, rest @ ..] => format!("{first} and {} more: {remedy}", rest.len()),
                [] => String::new(),
            })
            .collect::<Vec<_>>()
            .join("; "),
    };
    Refusal {
        cause: format!(
            "it imports what this host does not offer: {}",
            named.join(", ")
        ),
        remedy,
        lacks,
    }
}

impl Lack {
    fn named(&self) -> String {
        let (offered, package) = (self.offered.join(", "), self.package.join(", "));
        match (
            self.functions.as_slice(),
            offered.as_str(),
            package.as_str(),
        ) {
            ([], "", "") => format!("`{}` (unknown)", self.import),
            ([], "", package) => format!("`{}` (not in {package})", self.import),
            ([], offered, _) => format!("`{}` (offered: {offered})", self.import),
            (functions, offered, _) => format!(
                "`{}` of `{}` (not in {offered})",
                functions.join("`, `"),
                self.import
            ),
        }
    }
}

/// Whether there is a `run`, and if not, what the component is made for instead.
pub(in crate::engine) fn check_exports(exports: &[Item]) -> Result<(), Refusal> {
    let build = || {
        format!(
            "build it against the world `handler` of {}, whose one export is `run`",
            newest()
        )
    };
    if let Some(run) = exports.iter().find(|item| item.name == "run") {
        if run.kind == "function" {
            return Ok(());
        }
        return Err(Refusal::new(
            format!("its `run` is no function (kind: {})", run.kind),
            build(),
        ));
    }
    let of_worlds = exports
        .iter()
        .filter_map(|item| Some((item, Name::of(&item.name)?)))
        .find(|(_, name)| name.package == PACKAGE);
    if let Some((item, name)) = of_worlds {
        let offered: Vec<_> = RELEASED.iter().map(|world| world.package.version).collect();
        return Err(Refusal::new(
            format!(
                "it exports `{}` instead of `run` (offered: {})",
                item.name,
                offered.join(", ")
            ),
            build_for(name.version.as_deref()),
        ));
    }
    let instead = match exports {
        [] => "it exports nothing".to_owned(),
        [first, rest @ ..] => format!(
            "it exports `{}`{}",
            first.name,
            if rest.is_empty() {
                String::new()
            } else {
                format!(" and {} more", rest.len())
            }
        ),
    };
    Err(Refusal::new(format!("it has no `run`: {instead}"), build()))
}

/// A component that the linker does not take: an import has another type here.
pub(in crate::engine) fn mismatch(shape: &Shape, error: &wasmtime::Error) -> Refusal {
    let text = chain(error);
    let remedy = if text.contains("`wasi:") {
        wasi::remedy("", "")
    } else {
        build_for(shape.wanted())
    };
    Refusal::new(format!("it does not fit this host: {text}"), remedy)
}

/// A component whose `run` has a type of no world.
pub(in crate::engine) fn wrong_run(shape: &Shape, error: &wasmtime::Error) -> Refusal {
    let world = of(shape).map_or_else(newest, World::name);
    Refusal::new(
        format!(
            "its `run` is not the one of {world}, `func(job) -> result<option<string>, failure>`: {}",
            error.root_cause()
        ),
        build_for(shape.wanted()),
    )
}

fn chain(error: &wasmtime::Error) -> String {
    let parts: Vec<_> = error.chain().map(ToString::to_string).collect();
    parts.join(": ")
}

impl Shape {
    /// The version of the worlds that it was built for, if it is of none that is offered.
    fn wanted(&self) -> Option<&str> {
        self.imports
            .iter()
            .filter(|item| item.name.starts_with("piecework:handler/"))
            .filter_map(|item| Some(item.name.split_once('@')?.1))
            .find(|version| {
                RELEASED
                    .iter()
                    .all(|world| world.package.version != *version)
            })
    }
}
