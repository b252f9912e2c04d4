//! The deflate encoding without a frame around it, which some servers send under that
//! name although it stands for zlib's.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use actix_web::error::PayloadError;
use bytes::Bytes;
use flate2::{Decompress, FlushDecompress, Status};
use futures_util::Stream;

/// Room for what comes out of one step.
const ROOM: usize = 16 * 1024;

/// Inflates what `inner` gives, piece by piece; small pieces bound the memory.
pub(super) struct Bare<S> {
    inner: S,
    state: Decompress,
    /// The encoding's own end was seen; what follows is not read.
    ended: bool,
}

impl<S> Bare<S> {
    /// What `inner` encodes.
    pub(super) fn new(inner: S) -> Self {
        Self {
            inner,
            state: Decompress::new(false),
            ended: false,
        }
    }

    /// All that `piece` adds.
    fn inflate(&mut self, piece: &[u8]) -> io::Result<Vec<u8>> {
        let mut out = Vec::with_capacity(ROOM);
        let mut rest = piece;
        loop {
            let (taken, given) = (self.state.total_in(), self.state.total_out());
            let status = self
                .state
                .decompress_vec(rest, &mut out, FlushDecompress::None)?;
            let used = self.state.total_in().saturating_sub(taken);
            let used = usize::try_from(used).unwrap_or(usize::MAX);
            rest = rest.get(used..).unwrap_or_default();
            if status == Status::StreamEnd {
                self.ended = true;
                return Ok(out);
            }
            let stands = used == 0 && self.state.total_out() == given;
            if out.len() < out.capacity() && (rest.is_empty() || stands) {
                return Ok(out);
            }
            out.reserve(ROOM);
        }
    }
}

impl<S> Stream for Bare<S>
where
    S: Stream<Item = Result<Bytes, PayloadError>> + Unpin,
{
    type Item = Result<Bytes, PayloadError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        while !this.ended {
            match std::task::ready!(Pin::new(&mut this.inner).poll_next(cx)) {
                Some(Ok(piece)) => match this.inflate(&piece) {
                    Ok(out) if out.is_empty() => {}
                    Ok(out) => return Poll::Ready(Some(Ok(out.into()))),
                    Err(error) => {
                        this.ended = true;
                        return Poll::Ready(Some(Err(error.into())));
                    }
                },
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => {
                    this.ended = true;
                    return Poll::Ready(Some(Err(PayloadError::Incomplete(None))));
                }
            }
        }
        Poll::Ready(None)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use actix_web::error::PayloadError;
    use bytes::Bytes;
    use flate2::Compression;
    use flate2::write::DeflateEncoder;
    use futures_util::{StreamExt as _, stream};

    use super::Bare;

    fn deflated(plain: &[u8]) -> Vec<u8> {
        let mut writer = DeflateEncoder::new(Vec::new(), Compression::best());
        writer.write_all(plain).unwrap();
        writer.finish().unwrap()
    }

    async fn inflated(encoded: &[u8], size: usize) -> Result<Vec<u8>, PayloadError> {
        let pieces = encoded
            .chunks(size)
            .map(|piece| Ok(Bytes::copy_from_slice(piece)));
        let mut bare = Bare::new(stream::iter(pieces));
        let mut whole = Vec::new();
        while let Some(out) = bare.next().await {
            whole.extend_from_slice(&out?);
        }
        Ok(whole)
    }

    #[tokio::test]
    async fn what_went_in_comes_out_however_it_is_cut() {
        let texts = [
            Vec::new(),
            b"x".to_vec(),
            b"pong ".repeat(100_000),
            (0..=255).collect(),
        ];
        for plain in texts {
            let mut encoded = deflated(&plain);
            encoded.extend_from_slice(b"and more that is not read");
            for size in [1, 2, 1024, usize::MAX] {
                assert_eq!(inflated(&encoded, size).await.unwrap(), plain, "{size}");
            }
        }
    }

    #[tokio::test]
    async fn what_is_cut_short_or_broken_is_told() {
        let encoded = deflated(&b"pong ".repeat(1000));
        for length in 0..encoded.len() {
            assert!(inflated(&encoded[..length], 7).await.is_err(), "{length}");
        }
        assert!(inflated(b"\xff\xff{\"error\": 1}", 3).await.is_err());
    }
}
