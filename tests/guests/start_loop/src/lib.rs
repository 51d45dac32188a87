//! Loops in its start-up code: the host has to stop it while the component is being instantiated, before `run`.

use std::hint::black_box;

wit_bindgen::generate!({ path: "../../../wit", world: "handler", generate_all });

/// A core module's export of this name becomes the start function of the component's own wiring, so it is called by
/// the instantiation itself. (A static constructor would not do: the linker calls those from `run`.)
#[unsafe(no_mangle)]
extern "C" fn _initialize() {
    loop {
        // Opaque to the optimiser, so that the loop stays a loop.
        black_box(());
    }
}

struct StartLoop;

impl Guest for StartLoop {
    fn run(_job: Job) -> Result<Option<String>, Failure> {
        Ok(None)
    }
}

export!(StartLoop);
