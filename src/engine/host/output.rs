//! What a guest prints: the first and the last part are kept, what is between is counted. The streams never say that they
//! are full: a guest's `println!` would panic.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::PoisonError;
use std::task::{Context, Poll};

use tokio::io::AsyncWrite;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamResult};

use crate::engine::Shared;

/// Bytes of standard error that go into the text of a trap.
const ERROR_TAIL: usize = 1024;

/// The output of one attempt.
#[derive(Debug)]
pub(in crate::engine) struct Capture {
    /// Bytes kept from the start, and as many from the end.
    part: usize,
    first: Vec<u8>,
    last: VecDeque<u8>,
    cut: u64,
    error_tail: VecDeque<u8>,
}

impl Capture {
    /// Keeps `limit` bytes in all.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            part: limit / 2,
            first: Vec::new(),
            last: VecDeque::new(),
            cut: 0,
            error_tail: VecDeque::new(),
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.first.len() < self.part
    }

    pub(super) fn write(&mut self, bytes: &[u8], error: bool) {
        if error {
            keep_last(&mut self.error_tail, bytes, ERROR_TAIL);
        }
        let (head, tail) = bytes.split_at(bytes.len().min(self.part - self.first.len()));
        self.first.extend_from_slice(head);
        self.cut += keep_last(&mut self.last, tail, self.part);
    }

    /// Everything that was kept, with a mark where something was cut; `None` when nothing was printed.
    pub(in crate::engine) fn text(&self) -> Option<String> {
        if self.first.is_empty() && self.cut == 0 {
            return None;
        }
        let last: Vec<u8> = self.last.iter().copied().collect();
        let mark = if self.cut > 0 {
            format!("\n[{} bytes cut]\n", self.cut)
        } else {
            String::new()
        };
        let text = format!(
            "{}{mark}{}",
            String::from_utf8_lossy(&self.first),
            String::from_utf8_lossy(&last)
        );
        // PostgreSQL's text has no NUL.
        Some(if text.contains('\0') {
            text.replace('\0', "\u{fffd}")
        } else {
            text
        })
    }

    /// The end of standard error: where a panic's message is.
    pub(in crate::engine) fn error_tail(&self) -> String {
        let bytes: Vec<u8> = self.error_tail.iter().copied().collect();
        String::from_utf8_lossy(&bytes).trim().to_owned()
    }
}

/// Appends and keeps the newest `most` bytes; returns how many were dropped.
fn keep_last(ring: &mut VecDeque<u8>, bytes: &[u8], most: usize) -> u64 {
    let skipped = bytes.len().saturating_sub(most);
    let bytes = &bytes[skipped..];
    let surplus = (ring.len() + bytes.len()).saturating_sub(most);
    ring.drain(..surplus);
    ring.extend(bytes);
    (skipped + surplus) as u64
}

/// Standard output or error of one attempt.
#[derive(Clone, Debug)]
pub(super) struct Printer {
    capture: Shared<Capture>,
    error: bool,
}

impl Printer {
    pub(super) fn new(capture: Shared<Capture>, error: bool) -> Self {
        Self { capture, error }
    }

    fn print(&self, bytes: &[u8]) {
        self.capture
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .write(bytes, self.error);
    }
}

impl IsTerminal for Printer {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for Printer {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(self.clone())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

impl OutputStream for Printer {
    fn write(&mut self, bytes: bytes::Bytes) -> StreamResult<()> {
        self.print(&bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(64 * 1024)
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for Printer {
    async fn ready(&mut self) {}
}

impl AsyncWrite for Printer {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.print(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART: usize = 1000;

    #[test]
    fn the_first_and_the_last_part_are_kept_and_the_rest_counted() {
        let mut capture = Capture::new(2 * PART);
        assert_eq!(capture.text(), None);
        capture.write(b"begin", false);
        for _ in 0..1000 {
            capture.write(&[b'x'; 1000], false);
        }
        capture.write(b"end\0", true);
        let text = capture.text().unwrap();
        assert!(text.starts_with("begin") && text.ends_with("end\u{fffd}"));
        assert!(text.contains(&format!("[{} bytes cut]", 5 + 1_000_000 + 4 - 2 * PART)));
        assert!(text.len() < 2 * PART + 100);
        assert_eq!(capture.error_tail(), "end\0");
    }

    #[test]
    fn one_write_larger_than_everything_is_kept_from_both_ends() {
        let mut capture = Capture::new(2 * PART);
        let mut large = vec![b'a'; 10 * PART];
        *large.last_mut().unwrap() = b'z';
        capture.write(&large, true);
        assert!(capture.text().unwrap().ends_with('z'));
        assert_eq!(capture.error_tail().len(), ERROR_TAIL);
    }
}
