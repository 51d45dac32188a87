//! Never returns: shows that the time limit ends it all the same.
//!
//! With `{}` it computes and never calls the host, with `{"how": "sleep"}` it sleeps, and with
//! `{"how": "http", "url": "..."}` it makes one HTTP call after the other: the three places where a guest can be when its
//! time is up.

use std::hint::black_box;
use std::thread;
use std::time::Duration;

use piecework::handler::http;

wit_bindgen::generate!({ path: "../../wit", world: "handler", generate_all });

struct Spin;

impl Guest for Spin {
    fn run(job: Job) -> Result<Option<String>, Failure> {
        // Looks for whole words in place of reading JSON, which would make it several times as large.
        let mut words = job.payload.split('"');
        if words.clone().any(|word| word == "sleep") {
            loop {
                thread::sleep(Duration::from_nanos(u64::MAX));
            }
        }
        if let Some(url) =
            words.find(|word| word.starts_with("http:") || word.starts_with("https:"))
        {
            loop {
                // Whatever it answers: an error is no reason to end.
                drop(http::send(&http::Request {
                    method: "GET".to_owned(),
                    url: url.to_owned(),
                    headers: Vec::new(),
                    body: None,
                    timeout: None,
                }));
            }
        }
        loop {
            // Opaque to the optimiser, so that the loop stays a loop.
            black_box(&job);
        }
    }
}

export!(Spin);
