//! Writes what handlers save, at once and many together: while one statement is under way, the next gathers. It never takes
//! more than one connection, so a flood of checkpoints cannot delay claims or the lease.

use std::collections::HashSet;
use std::future::ready;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::Shared;
use crate::engine::{Ledger, Saving};
use crate::job::{ClaimToken, JobId};
use crate::store::{Error, Save, Saved};

/// Checkpoints written in one statement.
const AT_ONCE: usize = 64;

/// A checkpoint, and who waits for it.
#[derive(Debug)]
pub(super) struct Request {
    save: Save,
    answer: oneshot::Sender<Result<(), String>>,
}

/// The way from the attempts to the writer.
#[derive(Clone, Debug)]
pub(super) struct Sender(mpsc::UnboundedSender<Request>);

/// An attempt waits for each answer before it asks again. One that ends while it waits leaves its request behind, which is
/// dropped when its turn comes.
pub(super) fn channel() -> (Sender, mpsc::UnboundedReceiver<Request>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (Sender(sender), receiver)
}

impl Sender {
    /// The ledger of one attempt.
    pub(super) fn of(&self, id: JobId, claim: ClaimToken) -> Fenced {
        Fenced {
            sender: self.clone(),
            id,
            claim,
        }
    }
}

/// The ledger of one attempt, fenced by its claim.
#[derive(Debug)]
pub(super) struct Fenced {
    sender: Sender,
    id: JobId,
    claim: ClaimToken,
}

impl Ledger for Fenced {
    fn save(&self, name: &str, json: &str) -> Saving {
        let (answer, answered) = oneshot::channel();
        let save = Save {
            id: self.id,
            claim: self.claim,
            name: name.to_owned(),
            json: json.to_owned(),
        };
        const STOPS: &str = "the runner stops";
        if self.sender.0.send(Request { save, answer }).is_err() {
            return Box::pin(ready(Err(STOPS.to_owned())));
        }
        Box::pin(async move { answered.await.unwrap_or_else(|_| Err(STOPS.to_owned())) })
    }
}

/// Writes until dropped.
pub(super) async fn write(shared: Arc<Shared>, mut requests: mpsc::UnboundedReceiver<Request>) {
    let mut waiting = Vec::new();
    loop {
        if waiting.is_empty() && requests.recv_many(&mut waiting, AT_ONCE).await == 0 {
            return;
        }
        // One of each job at a time; an attempt that was taken over may still be asking.
        let mut seen = HashSet::new();
        let (now, later): (Vec<_>, Vec<_>) = waiting
            .into_iter()
            .partition(|request: &Request| seen.insert(request.save.id));
        waiting = later;
        let wanted: Vec<_> = now
            .into_iter()
            .filter(|request| !request.answer.is_closed())
            .collect();
        if !wanted.is_empty() {
            write_once(&shared, wanted).await;
        }
    }
}

async fn write_once(shared: &Shared, requests: Vec<Request>) {
    let (saves, answers): (Vec<_>, Vec<_>) = requests
        .into_iter()
        .map(|request| (request.save, request.answer))
        .unzip();
    match shared.store.save_checkpoints(&saves).await {
        // Something that no check foresaw: one by one, so that it strands nobody else.
        Err(Error::Refused { .. }) if saves.len() > 1 => {
            for (save, answer) in saves.into_iter().zip(answers) {
                let saved = shared
                    .store
                    .save_checkpoints(std::slice::from_ref(&save))
                    .await;
                reply(shared, vec![answer], &saved);
            }
        }
        saved => reply(shared, answers, &saved),
    }
}

fn reply(
    shared: &Shared,
    answers: Vec<oneshot::Sender<Result<(), String>>>,
    saved: &Result<Vec<Saved>, Error>,
) {
    let said = |saved: Saved| match saved {
        Saved::Written => Ok(()),
        Saved::Locked => {
            Err("another transaction has locked the job; try again in a moment".to_owned())
        }
        Saved::Stale => {
            shared.suspicion.notify_one();
            Err("the job was cancelled or taken over".to_owned())
        }
    };
    for (place, answer) in answers.into_iter().enumerate() {
        // An attempt that ended meanwhile does not wait for it any more.
        let _ = answer.send(match saved {
            Ok(saved) => said(saved.get(place).copied().unwrap_or(Saved::Stale)),
            Err(error) => Err(error.to_string()),
        });
    }
}
