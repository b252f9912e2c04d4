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

use crate::http::pieces::Pieces;
use crate::simulated::SimulatedBody;

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
    Plain(Incoming),
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
        let encoding = match name.trim().to_ascii_lowercase().as_str() {
            "gzip" | "x-gzip" => ContentEncoding::Gzip,
            "deflate" => ContentEncoding::Deflate,
            "br" => ContentEncoding::Brotli,
            "zstd" => ContentEncoding::Zstd,
            _ => return Self::Plain(body),
        };
        Self::Inflated(Box::pin(Decoder::new(Pieces::new(Frames(body)), encoding)))
    }

    /// The next bytes; `None` at a clean end.
    pub(crate) fn poll_chunk(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Broken>>> {
        match self {
            Self::Plain(body) => poll_data(body, cx).map_err(|_| Broken),
            Self::Inflated(stream) => stream.as_mut().poll_next(cx).map_err(|_| Broken),
            Self::Simulated(body) => body.poll_chunk(cx),
            Self::Spent => Poll::Ready(None),
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

/// A hyper body as the stream that the decoder wants.
struct Frames(Incoming);

impl Stream for Frames {
    type Item = Result<Bytes, PayloadError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        poll_data(&mut self.0, cx).map_err(|_| PayloadError::Incomplete(None))
    }
}
