//! Never returns and never calls the host: shows that the time limit ends it all the same.

use std::hint::black_box;

wit_bindgen::generate!({ path: "../../wit", world: "handler" });

struct Spin;

impl Guest for Spin {
    fn run(job: Job) -> Result<Option<String>, Failure> {
        loop {
            // Opaque to the optimiser, so that the loop stays a loop.
            black_box(&job);
        }
    }
}

export!(Spin);
