//! What this host offers to components: each released world, linked for ever, and the parts of WASI beside them. One table:
//! the linker is filled from it, imports are held against it, and messages name what stands in it. A newer world is a file
//! beside `v0_1.rs` and a line in [`RELEASED`]; nothing of an older one changes.

use std::future::Future;
use std::pin::Pin;

use wasmparser::names::{ComponentName, ComponentNameKind};
use wasmtime::Store;
use wasmtime::component::{InstancePre, Linker};

use super::host::HostState;
use super::shape::Shape;
use crate::job::Claimed;

mod check;
pub(super) mod v0_1;
mod wasi;

pub(super) use check::{check_exports, lack, mismatch, refuse, wrong_run};

/// The package of the worlds.
const PACKAGE: &str = "piecework:handler";
/// The released worlds, oldest first.
const RELEASED: &[World] = &[v0_1::WORLD];

/// What a package offers here.
pub(super) struct Package {
    /// `wasi:io`
    name: &'static str,
    version: &'static str,
    interfaces: &'static [Interface],
}

/// One interface of it.
pub(super) struct Interface {
    name: &'static str,
    /// Its functions, where the table knows them; the linker has the last word in any case.
    functions: Option<&'static [&'static str]>,
}

/// A released world.
pub(super) struct World {
    /// Its interfaces.
    package: Package,
    /// Puts them into a linker.
    link: fn(&mut Linker<HostState>) -> wasmtime::Result<()>,
    /// Finds `run` in a component and checks its type.
    enter: fn(InstancePre<HostState>) -> wasmtime::Result<Box<dyn Entry>>,
}

/// How a component of a world is called.
pub(super) trait Entry: Send + Sync {
    /// The engine that it was compiled for.
    fn engine(&self) -> &wasmtime::Engine;

    /// Makes an instance and, if there is a call, runs it.
    fn enter<'a>(
        &'a self,
        store: &'a mut Store<HostState>,
        call: Option<Call<'a>>,
    ) -> Pin<Box<dyn Future<Output = wasmtime::Result<Said>> + Send + 'a>>;
}

/// What a handler is called with, whatever its world.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    pub(super) job: &'a Claimed,
    pub(super) idempotency_key: &'a str,
}

/// What the guest returned, whatever its world.
pub(super) type Said = Result<Option<String>, GaveUp>;

/// A guest that gave up its attempt.
pub(super) struct GaveUp {
    pub(super) message: String,
    pub(super) wish: Wish,
}

/// What it wants done with the job. Times are in seconds.
#[derive(Clone, Copy)]
pub(super) enum Wish {
    Retry,
    RetryAfter(u32),
    Snooze(u32),
    Discard,
}

impl World {
    /// `piecework:handler@0.1.0`
    pub(super) fn name(&self) -> String {
        format!("{}@{}", self.package.name, self.package.version)
    }
}

/// Fills a linker with everything that is offered.
pub(super) fn link(linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    link_these(linker, RELEASED)
}

fn link_these(linker: &mut Linker<HostState>, worlds: &[World]) -> wasmtime::Result<()> {
    wasi::link(linker)?;
    worlds.iter().try_for_each(|world| (world.link)(linker))
}

/// The way into a component, by the newest world that its `run` fits.
pub(super) fn enter(
    shape: &Shape,
    pre: &InstancePre<HostState>,
) -> wasmtime::Result<Box<dyn Entry>> {
    enter_these(RELEASED, shape, pre)
}

fn enter_these(
    worlds: &[World],
    shape: &Shape,
    pre: &InstancePre<HostState>,
) -> wasmtime::Result<Box<dyn Entry>> {
    let mut answer = Err(wasmtime::Error::msg("no world is offered"));
    // One that imports nothing of a world may be of any.
    let named = worlds.iter().any(|world| world.is_used_by(shape));
    for world in worlds.iter().rev() {
        if named && !world.is_used_by(shape) {
            continue;
        }
        answer = (world.enter)(pre.clone());
        if answer.is_ok() {
            break;
        }
    }
    answer
}

/// The newest world that a component imports something of.
pub(super) fn of(shape: &Shape) -> Option<&'static World> {
    RELEASED.iter().rev().find(|world| world.is_used_by(shape))
}

impl World {
    fn is_used_by(&self, shape: &Shape) -> bool {
        shape.imports.iter().any(|item| {
            Name::of(&item.name).is_some_and(|name| {
                name.package == self.package.name && name.fits(self.package.version)
            })
        })
    }
}

/// `piecework:handler/jobs@0.1.0`
struct Name {
    package: String,
    interface: String,
    version: Option<String>,
}

impl Name {
    fn of(name: &str) -> Option<Self> {
        let parsed = ComponentName::new(name, 0).ok()?;
        let ComponentNameKind::Interface(parsed) = parsed.kind() else {
            return None;
        };
        Some(Self {
            package: format!("{}:{}", parsed.namespace(), parsed.package()),
            interface: parsed.interface().to_string(),
            version: parsed
                .version(None)
                .ok()
                .flatten()
                .map(|version| version.to_string()),
        })
    }

    /// Whether the linker takes what is offered in this version for what is wanted.
    fn fits(&self, offered: &str) -> bool {
        let Some(wanted) = &self.version else {
            return false;
        };
        wanted == offered || track(wanted).is_some_and(|wanted| Some(wanted) == track(offered))
    }
}

/// The part of a version that compatible ones share, by the linker's rules: 1 of 1.4.2, 0.1 of 0.1.7, nothing of 0.0.3 or of a
/// release candidate, which are compatible with themselves alone.
fn track(version: &str) -> Option<&str> {
    if version.contains('-') {
        return None;
    }
    let major = version.split('.').next()?;
    if major != "0" {
        return Some(major);
    }
    let minor = version.split('.').nth(1)?;
    (minor != "0").then(|| &version[..major.len() + 1 + minor.len()])
}

/// Everything that is offered, worlds first.
fn packages() -> impl Iterator<Item = &'static Package> {
    RELEASED
        .iter()
        .map(|world| &world.package)
        .chain(wasi::PACKAGES)
}

impl Package {
    fn interface(&self, name: &str) -> Option<&Interface> {
        self.interfaces
            .iter()
            .find(|interface| interface.name == name)
    }
}

#[cfg(test)]
mod tests {
    //! A second world beside the first: what a newer release will do.

    use wasmtime::component::{Component, HasSelf, ResourceTable};

    use super::*;

    mod v0_2 {
        wasmtime::component::bindgen!({
            inline: "package piecework:handler@0.2.0;
                interface jobs { cancelled: func() -> u32; }
                world handler { import jobs; export run: func() -> u32; }",
            exports: { default: async },
        });
    }

    impl v0_2::piecework::handler0_2_0::jobs::Host for HostState {
        fn cancelled(&mut self) -> u32 {
            2
        }
    }

    impl Entry for v0_2::HandlerPre<HostState> {
        fn engine(&self) -> &wasmtime::Engine {
            self.engine()
        }

        fn enter<'a>(
            &'a self,
            _: &'a mut Store<HostState>,
            _: Option<Call<'a>>,
        ) -> Pin<Box<dyn Future<Output = wasmtime::Result<Said>> + Send + 'a>> {
            Box::pin(async { Ok(Ok(Some("0.2".to_owned()))) })
        }
    }

    const BOTH: &[World] = &[
        v0_1::WORLD,
        World {
            package: Package {
                name: PACKAGE,
                version: "0.2.0",
                interfaces: &[Interface {
                    name: "jobs",
                    functions: Some(&["cancelled"]),
                }],
            },
            link: |linker| {
                v0_2::piecework::handler0_2_0::jobs::add_to_linker::<_, HasSelf<HostState>>(
                    linker,
                    |state| state,
                )
            },
            enter: |pre| Ok(Box::new(v0_2::HandlerPre::new(pre)?)),
        },
    ];

    /// The newest world's component: the same interface as in the old one, with another type.
    const NEW: &str = r#"(component
        (import "piecework:handler/jobs@0.2.0" (instance (export "cancelled" (func (result u32)))))
        (core module $guest (func (export "run") (result i32) (i32.const 0)))
        (core instance $guest (instantiate $guest))
        (func (export "run") (result u32) (canon lift (core func $guest "run"))))"#;

    #[test]
    fn a_second_world_is_linked_beside_the_first_and_changes_nothing_for_it() {
        let mut options = wasmtime::Config::new();
        options.concurrency_support(false);
        let engine = wasmtime::Engine::new(&options).unwrap();
        let mut linker = Linker::new(&engine);
        link_these(&mut linker, BOTH).unwrap();
        let old = include_bytes!("../../../tests/golden/handler-0.1.0.wasm").to_vec();
        let new = wat::parse_str(NEW).unwrap();
        for (bytes, worlds) in [(&old, [true, false]), (&new, [false, true])] {
            let shape = Shape::read(bytes).unwrap();
            assert_eq!([0, 1].map(|n| BOTH[n].is_used_by(&shape)), worlds);
            let component = Component::new(&engine, bytes).unwrap();
            let pre = linker.instantiate_pre(&component).unwrap();
            enter_these(BOTH, &shape, &pre).unwrap();
            // And by no other.
            for (world, fits) in BOTH.iter().zip(worlds) {
                assert_eq!((world.enter)(pre.clone()).is_ok(), fits);
            }
        }
        // A host that has the first alone says what is missing.
        let shape = Shape::read(&new).unwrap();
        let lacks = shape.lacks();
        assert_eq!(lacks.len(), 1);
        assert_eq!(lacks[0].offered, ["0.1.0"]);
        assert_eq!(lacks[0].wanted.as_deref(), Some("0.2.0"));
    }

    #[test]
    fn versions_are_compatible_as_the_linker_has_it() {
        for (wanted, offered, fits) in [
            ("0.1.0", "0.1.0", true),
            ("0.1.9", "0.1.0", true),
            ("0.1.0", "0.1.9", true),
            ("0.2.0", "0.1.0", false),
            ("0.10.0", "0.1.0", false),
            ("1.0.0", "1.7.3", true),
            ("1.0.0", "2.0.0", false),
            ("0.0.1", "0.0.2", false),
            ("0.2.0-rc.1", "0.2.0-rc.1", true),
            ("0.2.0-rc.2", "0.2.0-rc.1", false),
            ("0.2.0-rc.1", "0.2.0", false),
        ] {
            let name = Name::of(&format!("a:b/c@{wanted}")).unwrap();
            assert_eq!(name.fits(offered), fits, "{wanted} {offered}");
            // What the linker itself does.
            let engine = wasmtime::Engine::default();
            let mut linker = Linker::<ResourceTable>::new(&engine);
            let mut instance = linker.instance(&format!("a:b/c@{offered}")).unwrap();
            instance.func_wrap("f", |_, (): ()| Ok(())).unwrap();
            let component =
                format!(r#"(component (import "a:b/c@{wanted}" (instance (export "f" (func)))))"#);
            let component = wat::parse_str(component).unwrap();
            let component = Component::new(&engine, component).unwrap();
            let linked = linker.instantiate_pre(&component).is_ok();
            assert_eq!(linked, fits, "{wanted} {offered}: the linker");
        }
    }
}
