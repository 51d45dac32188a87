//! Whose turn it is to compile.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How many compile at once at most: a second one behind one that does not come to an end.
const MOST: u32 = 2;

/// Lets one component be compiled at a time, since each takes all cores and up to 700 MiB. One that takes longer than the patience of
/// those behind it is probably one that never ends, and holds up nobody else than the next of its kind.
#[derive(Debug)]
pub(super) struct Turns {
    taken: Mutex<u32>,
    freed: Condvar,
    patience: Duration,
}

/// A turn, which ends with the value.
#[derive(Debug)]
pub(super) struct Turn<'a>(&'a Turns);

impl Turns {
    pub(super) fn new(patience: Duration) -> Self {
        Self {
            taken: Mutex::new(0),
            freed: Condvar::new(),
            patience,
        }
    }

    /// Waits for its turn.
    pub(super) fn take(&self) -> Turn<'_> {
        let patient = self
            .freed
            .wait_timeout_while(self.taken(), self.patience, |taken| *taken > 0);
        let (taken, _) = patient.unwrap_or_else(PoisonError::into_inner);
        let free = self.freed.wait_while(taken, |taken| *taken >= MOST);
        *free.unwrap_or_else(PoisonError::into_inner) += 1;
        Turn(self)
    }

    fn taken(&self) -> MutexGuard<'_, u32> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.taken() -= 1;
        self.0.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn one_at_a_time_and_a_second_behind_one_without_end() {
        let turns = Turns::new(Duration::from_millis(50));
        let first = turns.take();
        thread::scope(|scope| {
            let (tell, told) = mpsc::channel();
            let compile = |name: &'static str| {
                let (tell, turns) = (tell.clone(), &turns);
                scope.spawn(move || {
                    let turn = turns.take();
                    tell.send(name).unwrap();
                    turn
                })
            };
            // Patience ends.
            let second = compile("second");
            assert_eq!(told.recv().unwrap(), "second");
            let second = second.join().unwrap();
            let third = compile("third");
            let early = told.recv_timeout(Duration::from_millis(200));
            assert!(early.is_err(), "there are never three");
            drop(second);
            assert_eq!(told.recv().unwrap(), "third");
            drop(third.join().unwrap());
        });
        drop(first);
        let turns = Turns::new(Duration::MAX);
        drop(turns.take());
        drop(turns.take());
        assert_eq!(*turns.taken(), 0);
    }
}
