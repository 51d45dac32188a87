//! Collects the body of an answer for the buffered door, and unpacks gzip that the host asked for. The cap holds for the
//! bytes received and for the bytes unpacked, at every step: ten packed kilobytes can be ten megabytes.

use std::io::{self, BufRead, Read, Write};

use ::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, HeaderMap};
use bytes::Bytes;
use flate2::bufread::MultiGzDecoder;

use super::Error;
use super::body::Reading;
use crate::policy::Destination;

/// Unpacked bytes of one step.
const STEP: usize = 64 * 1024;

/// Packed bytes of one step: there are blocks that hold nothing, and each of them is work.
const PACKED_STEP: usize = 16 * 1024;

/// The whole body, as it came. Runs on the network's thread.
pub(super) async fn read(reading: &mut Reading, limit: u64) -> Result<Bytes, Error> {
    let mut capped = Capped::new(limit);
    let stated = reading.size_hint().exact().unwrap_or(0);
    capped.grow(usize::try_from(stated).unwrap_or(usize::MAX));
    while let Some(frame) = reading.next().await? {
        if let Some(data) = frame.data_ref() {
            capped.write_all(data).map_err(|_| reading.too_large())?;
        }
    }
    Ok(capped.bytes.into())
}

/// The body without gzip, if it has that. Runs where the caller is polled: this can be 8 MiB of work, which its limits on
/// computing have to see. Between two steps (0.05 ms each for a body of zeros) it lets others have their turn and can be
/// stopped.
pub(super) async fn unpack(
    body: Bytes,
    headers: &mut HeaderMap,
    to: &Destination,
    limit: u64,
) -> Result<Bytes, Error> {
    // Empty is an answer to `HEAD`, or one without a body.
    if body.is_empty() || !is_gzip(headers) {
        return Ok(body);
    }
    let mut capped = Capped::new(limit);
    let mut piece = vec![0; STEP];
    let mut unpacking = MultiGzDecoder::new(Steps {
        left: &body,
        room: PACKED_STEP,
    });
    loop {
        match unpacking.read(&mut piece) {
            Ok(0) => break,
            Ok(length) => capped
                .write_all(&piece[..length])
                .map_err(|_| Error::body_too_large(to, limit))?,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => {
                return Err(Error::Protocol(format!(
                    "the answer of `{to}` is not the valid gzip that it says it is"
                )));
            }
        }
        unpacking.get_mut().room = PACKED_STEP;
        tokio::task::yield_now().await;
    }
    headers.remove(CONTENT_ENCODING);
    headers.remove(CONTENT_LENGTH);
    Ok(capped.bytes.into())
}

/// Packed bytes, so many of them at a time; then it would block until it has room again.
struct Steps<'a> {
    left: &'a [u8],
    room: usize,
}

impl Read for Steps<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let length = self.fill_buf()?.read(into)?;
        self.consume(length);
        Ok(length)
    }
}

impl BufRead for Steps<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.room == 0 && !self.left.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(&self.left[..self.left.len().min(self.room)])
    }

    fn consume(&mut self, length: usize) {
        self.left = &self.left[length..];
        self.room -= length;
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
    limit: usize,
}

impl Capped {
    fn new(limit: u64) -> Self {
        Self {
            bytes: Vec::new(),
            limit: usize::try_from(limit).unwrap_or(usize::MAX),
        }
    }

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
    use std::pin::pin;

    use ::http::{HeaderMap, HeaderValue, header};
    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::{Capped, PACKED_STEP, unpack};
    use crate::http::Error;
    use crate::policy::destination;

    /// The body, and in how many steps it was unpacked.
    async fn unpacked(packed: Vec<u8>, limit: u64) -> Result<(Vec<u8>, usize), Error> {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        let to = destination("http://example.com").unwrap().1;
        let mut steps = 0;
        let mut work = pin!(unpack(packed.into(), &mut headers, &to, limit));
        let body = std::future::poll_fn(|cx| {
            steps += 1;
            work.as_mut().poll(cx)
        });
        body.await.map(|body| (body.to_vec(), steps))
    }

    fn packed(plain: &[u8]) -> Vec<u8> {
        let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
        packer.write_all(plain).unwrap();
        packer.finish().unwrap()
    }

    #[tokio::test]
    async fn each_step_is_small_on_both_sides() {
        let mut seed = 1_u32;
        let mixed: Vec<u8> = std::iter::repeat_with(|| {
            seed = seed.wrapping_mul(1_103_515_245).wrapping_add(12345);
            // Half of it repeats.
            if seed >> 31 == 0 {
                b'x'
            } else {
                seed.to_be_bytes()[1]
            }
        })
        .take(1_000_000)
        .collect();
        let whole = packed(&mixed);
        let least = whole.len() / PACKED_STEP;
        let (body, steps) = unpacked(whole, 1_000_000).await.unwrap();
        assert!(body == mixed && steps > least, "{steps}");
        // Blocks without a byte in them: fixed size, then five bytes each.
        let mut hollow = packed(b"")[..10].to_vec();
        for _ in 0..200_000 {
            hollow.extend([0, 0, 0, 0xff, 0xff]);
        }
        hollow.extend([1, 0, 0, 0xff, 0xff]);
        hollow.extend([0; 8]);
        let (body, steps) = unpacked(hollow.clone(), 10).await.unwrap();
        assert!(body.is_empty() && steps > 61, "{steps}");
        hollow.pop();
        assert_eq!(unpacked(hollow, 10).await.unwrap_err().kind(), "protocol");
    }

    #[tokio::test]
    async fn members_follow_each_other_and_nothing_else_does() {
        let mut many = Vec::new();
        for _ in 0..3000 {
            many.extend(packed(b"seven b"));
        }
        let (body, _) = unpacked(many.clone(), 21_000).await.unwrap();
        assert_eq!(body, b"seven b".repeat(3000));
        assert_eq!(
            unpacked(many.clone(), 20_999).await.unwrap_err().kind(),
            "too-large"
        );
        many.extend(b"more");
        assert_eq!(unpacked(many, 30_000).await.unwrap_err().kind(), "protocol");
    }

    #[test]
    fn memory_stays_within_the_cap() {
        let mut capped = Capped::new(1000);
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
