//! An upstream's answer, wherever it comes from.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use actix_http::encoding::Decoder;
use actix_web::error::PayloadError;
use actix_web::http::header::ContentEncoding;
use bytes::{Bytes, BytesMut};
use futures_util::Stream;
use http::HeaderMap;
use http_body::Body as _;
use hyper::body::Incoming;
use shared_proto::stream::ContentType;
use tokio::time::timeout;

mod bare;
mod sniff;

use crate::http::pieces::Pieces;
use crate::simulated::SimulatedBody;
use bare::Bare;
use sniff::{Encoding, Named};

/// The head of an answer and its body to come.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: AnswerBody,
}

impl Answer {
    /// What its `content-type` promises.
    pub(crate) fn content_type(&self) -> ContentType {
        let value = self.headers.get(http::header::CONTENT_TYPE);
        ContentType::parse(value.and_then(|value| value.to_str().ok()))
    }
}

/// The connection broke in the middle of the body, or its encoding did.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Broken;

/// The body of an answer: plain bytes, whatever encoding they came in.
pub(crate) enum AnswerBody {
    /// Its first bytes, as far as they came, have to tell how it is encoded; the
    /// word that says how it should be.
    Unread(Bytes, Incoming, Named),
    /// What was read to see that it is plain, and the rest.
    Plain(Bytes, Incoming),
    /// Read to its end, or given away.
    Spent,
    Inflated(Pin<Box<dyn Stream<Item = Result<Bytes, PayloadError>>>>),
    Simulated(SimulatedBody),
}

impl AnswerBody {
    /// Takes an HTTP answer's body, inflating it when it is encoded.
    pub(crate) fn new(body: Incoming, headers: &HeaderMap) -> Self {
        let encoding = headers.get(http::header::CONTENT_ENCODING);
        let name = encoding.and_then(|value| value.to_str().ok()).unwrap_or("");
        match name.trim().to_ascii_lowercase().as_str() {
            "gzip" | "x-gzip" => Self::inflated(Bytes::new(), body, ContentEncoding::Gzip),
            "br" => Self::inflated(Bytes::new(), body, ContentEncoding::Brotli),
            "zstd" => Self::inflated(Bytes::new(), body, ContentEncoding::Zstd),
            "deflate" | "zlib" => Self::Unread(Bytes::new(), body, Named::Deflate),
            _ => Self::Unread(Bytes::new(), body, Named::Nothing),
        }
    }

    fn inflated(start: Bytes, body: Incoming, encoding: ContentEncoding) -> Self {
        let pieces = Pieces::new(Frames { start, body });
        Self::Inflated(Box::pin(Decoder::new(pieces, encoding)))
    }

    /// Reads until it is known how the body is encoded.
    fn poll_encoding(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        while let Self::Unread(start, body, named) = self {
            let read = std::task::ready!(poll_data(body, cx));
            let is_over = read.is_none();
            if let Some(data) = read.transpose().map_err(|_| Broken)? {
                *start = joined(start, data);
            }
            let Some(encoding) = sniff::encoding(start, *named, is_over) else {
                continue;
            };
            if let Self::Unread(start, body, _) = std::mem::replace(self, Self::Spent) {
                *self = match encoding {
                    Encoding::Plain => Self::Plain(start, body),
                    Encoding::Gzip => Self::inflated(start, body, ContentEncoding::Gzip),
                    Encoding::Zlib => Self::inflated(start, body, ContentEncoding::Deflate),
                    Encoding::Deflate => {
                        let pieces = Pieces::new(Frames { start, body });
                        Self::Inflated(Box::pin(Bare::new(pieces)))
                    }
                };
            }
        }
        Poll::Ready(Ok(()))
    }

    /// The next bytes; `None` at a clean end.
    pub(crate) fn poll_chunk(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Broken>>> {
        std::task::ready!(self.poll_encoding(cx))?;
        match self {
            Self::Plain(start, _) if !start.is_empty() => {
                Poll::Ready(Some(Ok(std::mem::take(start))))
            }
            Self::Plain(_, body) => poll_data(body, cx).map_err(|_| Broken),
            Self::Inflated(stream) => stream.as_mut().poll_next(cx).map_err(|_| Broken),
            Self::Simulated(body) => body.poll_chunk(cx),
            Self::Spent | Self::Unread(..) => Poll::Ready(None),
        }
    }

    /// The next bytes; `None` at a clean end.
    pub(crate) async fn chunk(&mut self) -> Option<Result<Bytes, Broken>> {
        std::future::poll_fn(|cx| self.poll_chunk(cx)).await
    }

    /// The whole body, or `None` past `max` bytes. Fails with `None` when
    /// nothing came for `idle`.
    pub(crate) async fn whole(
        &mut self,
        max: usize,
        idle: Duration,
    ) -> Result<Option<Bytes>, Option<Broken>> {
        let mut first = Bytes::new();
        let mut rest = BytesMut::new();
        while let Some(chunk) = timeout(idle, self.chunk()).await.map_err(|_| None)? {
            let chunk = chunk.map_err(Some)?;
            let length = first
                .len()
                .saturating_add(rest.len())
                .saturating_add(chunk.len());
            if length > max {
                return Ok(None);
            }
            if first.is_empty() && rest.is_empty() {
                first = chunk;
                continue;
            }
            if rest.is_empty() {
                rest.extend_from_slice(&std::mem::take(&mut first));
            }
            rest.extend_from_slice(&chunk);
        }
        Ok(Some(if rest.is_empty() {
            first
        } else {
            rest.freeze()
        }))
    }

    /// At most the first `max` bytes; what follows is not read. A break ends it early.
    pub(crate) async fn head(&mut self, max: usize) -> Bytes {
        let mut out = BytesMut::new();
        while out.len() < max {
            let Some(Ok(chunk)) = self.chunk().await else {
                break;
            };
            let room = max.saturating_sub(out.len());
            out.extend_from_slice(chunk.get(..room).unwrap_or(&chunk));
        }
        out.freeze()
    }
}

fn poll_data(
    body: &mut Incoming,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Bytes, hyper::Error>>> {
    loop {
        match std::task::ready!(Pin::new(&mut *body).poll_frame(cx)) {
            None => return Poll::Ready(None),
            Some(Err(error)) => return Poll::Ready(Some(Err(error))),
            // Trailers carry nothing for us.
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Poll::Ready(Some(Ok(data)));
                }
            }
        }
    }
}

/// Both, without a copy where one of them is empty.
fn joined(start: &Bytes, more: Bytes) -> Bytes {
    if start.is_empty() {
        return more;
    }
    let mut both = BytesMut::from(&start[..]);
    both.extend_from_slice(&more);
    both.freeze()
}

/// A hyper body as the stream that the decoder wants, after what was read of it.
struct Frames {
    start: Bytes,
    body: Incoming,
}

impl Stream for Frames {
    type Item = Result<Bytes, PayloadError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if !self.start.is_empty() {
            return Poll::Ready(Some(Ok(std::mem::take(&mut self.start))));
        }
        poll_data(&mut self.body, cx).map_err(|_| PayloadError::Incomplete(None))
    }
}
