//! Collects the body of an answer for the buffered door, and unpacks gzip that the host asked for. The cap holds for the
//! bytes received and for the bytes unpacked, at every step: ten packed kilobytes can be ten megabytes.

use std::io::{self, Write};

use ::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, HeaderMap};
use bytes::Bytes;
use flate2::write::MultiGzDecoder;

use super::Error;
use super::body::Reading;

/// Packed bytes that are unpacked in one go: at most 4 MiB, about 10 ms, before other calls have their turn.
const STEP: usize = 4 * 1024;

/// The whole body. `unpack` says that gzip was asked for.
pub(super) async fn read(
    reading: &mut Reading,
    headers: &mut HeaderMap,
    unpack: bool,
    limit: u64,
) -> Result<Bytes, Error> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut capped = Capped {
        bytes: Vec::new(),
        limit,
    };
    if !unpack || !is_gzip(headers) {
        let stated = reading.size_hint().exact().unwrap_or(0);
        capped.grow(usize::try_from(stated).unwrap_or(usize::MAX));
        while let Some(frame) = reading.next().await? {
            if let Some(data) = frame.data_ref() {
                capped.write_all(data).map_err(|_| reading.too_large())?;
            }
        }
        return Ok(capped.bytes.into());
    }
    let mut unpacking = MultiGzDecoder::new(capped);
    let mut empty = true;
    while let Some(frame) = reading.next().await? {
        for piece in frame.data_ref().map_or(&[][..], |data| data).chunks(STEP) {
            empty = false;
            if unpacking.write_all(piece).is_err() {
                return Err(fault(reading, unpacking.get_ref()));
            }
            tokio::task::yield_now().await;
        }
    }
    if empty {
        // An answer to `HEAD`, or one without a body.
        return Ok(Bytes::new());
    }
    if unpacking.try_finish().is_err() {
        return Err(fault(reading, unpacking.get_ref()));
    }
    headers.remove(CONTENT_ENCODING);
    headers.remove(CONTENT_LENGTH);
    Ok(std::mem::take(&mut unpacking.get_mut().bytes).into())
}

fn fault(reading: &Reading, capped: &Capped) -> Error {
    if capped.limit == 0 {
        reading.too_large()
    } else {
        reading.malformed("is not the valid gzip that it says it is")
    }
}

fn is_gzip(headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(CONTENT_ENCODING).iter();
    let first = values.next().map(|value| value.as_bytes().trim_ascii());
    let gzip = first.is_some_and(|value| {
        value.eq_ignore_ascii_case(b"gzip") || value.eq_ignore_ascii_case(b"x-gzip")
    });
    gzip && values.next().is_none()
}

/// Bytes up to a limit. Its memory never grows above the limit either, as doubling would.
struct Capped {
    bytes: Vec<u8>,
    /// Zero once it was hit.
    limit: usize,
}

impl Capped {
    fn grow(&mut self, wanted: usize) {
        let wanted = wanted.min(self.limit);
        if wanted > self.bytes.capacity() {
            let more = wanted
                .max(self.bytes.capacity().saturating_mul(2))
                .min(self.limit);
            self.bytes.reserve_exact(more - self.bytes.len());
        }
    }
}

impl Write for Capped {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let length = self.bytes.len().saturating_add(data.len());
        if length > self.limit {
            self.limit = 0;
            self.bytes = Vec::new();
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.grow(length);
        self.bytes.extend_from_slice(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::Capped;

    #[test]
    fn memory_stays_within_the_cap() {
        let mut capped = Capped {
            bytes: Vec::new(),
            limit: 1000,
        };
        for _ in 0..9 {
            capped.write_all(&[0; 100]).unwrap();
        }
        assert!(capped.bytes.capacity() <= 1000);
        capped.write_all(&[0; 100]).unwrap();
        assert_eq!(capped.bytes.len(), 1000);
        assert!(capped.write_all(&[0]).is_err());
        assert_eq!(capped.bytes.capacity(), 0);
    }
}
