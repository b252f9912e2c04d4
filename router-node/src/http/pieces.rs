//! A stream of bytes in small pieces, so that inflating one of them can't fill
//! the memory before its size is looked at.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::Stream;

/// Bytes of one piece. Compression by a thousand makes about a mebibyte of it.
const PIECE: usize = 1024;

/// Cuts what `inner` gives into pieces; nothing is copied.
pub(crate) struct Pieces<S> {
    inner: S,
    rest: Bytes,
}

impl<S> Pieces<S> {
    /// The pieces of `inner`.
    pub(crate) fn new(inner: S) -> Self {
        Self {
            inner,
            rest: Bytes::new(),
        }
    }
}

impl<S, E> Stream for Pieces<S>
where
    S: Stream<Item = Result<Bytes, E>> + Unpin,
{
    type Item = Result<Bytes, E>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        while this.rest.is_empty() {
            match std::task::ready!(Pin::new(&mut this.inner).poll_next(cx)) {
                Some(Ok(bytes)) => this.rest = bytes,
                end => return Poll::Ready(end),
            }
        }
        let length = this.rest.len().min(PIECE);
        Poll::Ready(Some(Ok(this.rest.split_to(length))))
    }
}
