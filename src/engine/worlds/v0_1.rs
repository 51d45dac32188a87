//! The world `piecework:handler@0.1.0`: its bindings, made of `wit/`, and the way between them and the words of the engine.
//! `tests/golden/` has a component of it and its text as it was released.

use std::future::Future;
use std::pin::Pin;

use wasmtime::Store;
use wasmtime::component::{HasSelf, InstancePre, Linker};

use super::{Call, Entry, GaveUp, Interface, Package, Said, Wish, World};
use crate::engine::host::HostState;

wasmtime::component::bindgen!({
    path: "wit",
    world: "handler",
    imports: {
        "piecework:handler/http.send": async | trappable,
        "piecework:handler/checkpoint": async | trappable,
        default: trappable,
    },
    exports: { default: async },
});

use piecework::handler::{checkpoint, http, jobs, log, types};

pub(super) const WORLD: World = World {
    package: Package {
        name: super::PACKAGE,
        version: "0.1.0",
        interfaces: &[
            interface("types", &[]),
            interface("http", &["send"]),
            interface("jobs", &["enqueue", "progress", "cancelled"]),
            interface("checkpoint", &["load", "save"]),
            interface("log", &["log"]),
        ],
    },
    link,
    enter,
};

const fn interface(name: &'static str, functions: &'static [&'static str]) -> Interface {
    Interface {
        name,
        functions: Some(functions),
    }
}

/// Interface by interface: `wasi:config`, which the world imports too, is shared by all worlds.
fn link(linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    types::add_to_linker::<_, HasSelf<HostState>>(linker, |state| state)?;
    http::add_to_linker::<_, HasSelf<HostState>>(linker, |state| state)?;
    jobs::add_to_linker::<_, HasSelf<HostState>>(linker, |state| state)?;
    checkpoint::add_to_linker::<_, HasSelf<HostState>>(linker, |state| state)?;
    log::add_to_linker::<_, HasSelf<HostState>>(linker, |state| state)
}

fn enter(pre: InstancePre<HostState>) -> wasmtime::Result<Box<dyn Entry>> {
    Ok(Box::new(HandlerPre::new(pre)?))
}

impl Entry for HandlerPre<HostState> {
    fn engine(&self) -> &wasmtime::Engine {
        self.engine()
    }

    fn enter<'a>(
        &'a self,
        store: &'a mut Store<HostState>,
        call: Option<Call<'a>>,
    ) -> Pin<Box<dyn Future<Output = wasmtime::Result<Said>> + Send + 'a>> {
        Box::pin(async move {
            let instance = self.instantiate_async(&mut *store).await?;
            let Some(call) = call else {
                return Ok(Ok(None));
            };
            let said = instance.call_run(store, &input(call)).await?;
            Ok(said.map_err(GaveUp::from))
        })
    }
}

fn input(call: Call<'_>) -> types::Job {
    let job = call.job;
    types::Job {
        id: job.id.to_string(),
        job_type: job.job_type.as_str().to_owned(),
        payload: job.payload.clone(),
        attempt: job.attempt,
        max_attempts: job.max_attempts,
        idempotency_key: call.idempotency_key.to_owned(),
        ordering_key: job.ordering_key.clone(),
        group_key: job.group_key.clone(),
        enqueued_at: job.enqueued_at.to_string(),
        due_at: job.due_at.to_string(),
        parent: job.parent.map(|id| id.to_string()),
    }
}

impl From<types::Failure> for GaveUp {
    fn from(failure: types::Failure) -> Self {
        Self {
            message: failure.message,
            wish: match failure.disposition {
                types::Disposition::Retry => Wish::Retry,
                types::Disposition::RetryAfter(seconds) => Wish::RetryAfter(seconds),
                types::Disposition::Snooze(seconds) => Wish::Snooze(seconds),
                types::Disposition::Discard => Wish::Discard,
            },
        }
    }
}
