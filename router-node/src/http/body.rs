//! Reading a client's body: bounded, inflated, and not for ever; and how much
//! memory all of them take.

use std::time::Duration;

use actix_http::encoding::Decoder;
use actix_web::http::header::{self, ContentEncoding, HeaderMap};
use actix_web::web::Payload;
use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt as _};
use prometheus_client::metrics::gauge::Gauge;

use super::pieces::Pieces;
use super::reply::ClientError;

/// The memory of one request's body, counted among all of the node until it is dropped.
pub(crate) struct Held {
    all: Gauge,
    bytes: i64,
}

impl Held {
    /// Nothing yet, to be counted in `all`.
    pub(crate) fn nothing(all: &Gauge) -> Self {
        Self {
            all: all.clone(),
            bytes: 0,
        }
    }

    /// Takes `bytes` more unless all of them together exceed `max`.
    fn take(&mut self, bytes: usize, max: usize) -> Result<(), ClientError> {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let before = self.all.inc_by(bytes);
        if before.saturating_add(bytes) > i64::try_from(max).unwrap_or(i64::MAX) {
            self.all.dec_by(bytes);
            return Err(ClientError {
                retry_after_ms: Some(1000),
                ..ClientError::new(
                    503,
                    "server_overloaded",
                    "the requests under way fill the memory set aside for their bodies (server.maxBodyMemoryBytes); try again",
                )
            });
        }
        self.bytes = self.bytes.saturating_add(bytes);
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.all.dec_by(self.bytes);
    }
}

/// Limits of one body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Largest body after inflation, bytes.
    pub(crate) max_bytes: usize,
    /// Most bytes of all bodies of the node together.
    pub(crate) max_memory: usize,
    /// Longest silence while it is sent.
    pub(crate) idle: Duration,
}

/// The whole body, inflated; its memory is counted in `held`.
pub(crate) async fn read(
    headers: &HeaderMap,
    payload: Payload,
    limits: Limits,
    held: &mut Held,
) -> Result<Bytes, ClientError> {
    let declared = declared_length(headers);
    if declared.is_some_and(|length| length > limits.max_bytes) {
        return Err(too_large(limits.max_bytes));
    }
    match encoding(headers)? {
        None => collect(payload, declared, limits, held).await,
        Some(encoding) => {
            let inflated = Decoder::new(Pieces::new(payload), encoding);
            collect(Box::pin(inflated), None, limits, held).await
        }
    }
}

fn declared_length(headers: &HeaderMap) -> Option<usize> {
    let value = headers.get(header::CONTENT_LENGTH)?.to_str().ok()?;
    value.trim().parse().ok()
}

fn encoding(headers: &HeaderMap) -> Result<Option<ContentEncoding>, ClientError> {
    let Some(value) = headers.get(header::CONTENT_ENCODING) else {
        return Ok(None);
    };
    let name = value.to_str().unwrap_or("").trim().to_ascii_lowercase();
    match name.as_str() {
        "" | "identity" => Ok(None),
        "gzip" | "x-gzip" => Ok(Some(ContentEncoding::Gzip)),
        "deflate" => Ok(Some(ContentEncoding::Deflate)),
        "br" => Ok(Some(ContentEncoding::Brotli)),
        "zstd" => Ok(Some(ContentEncoding::Zstd)),
        _ => Err(ClientError::new(
            415,
            "unsupported_content_encoding",
            "this content-encoding is not supported; send gzip, deflate, br, zstd or none",
        )),
    }
}

async fn collect<S, E>(
    mut body: S,
    declared: Option<usize>,
    limits: Limits,
    held: &mut Held,
) -> Result<Bytes, ClientError>
where
    S: Stream<Item = Result<Bytes, E>> + Unpin,
{
    let mut first: Option<Bytes> = None;
    // Grows with what arrives, never by what is merely announced.
    let mut whole = BytesMut::new();
    loop {
        let Ok(next) = tokio::time::timeout(limits.idle, body.next()).await else {
            return Err(ClientError::new(
                408,
                "request_timeout",
                format!(
                    "the request body stalled for {} ms (server.bodyIdleTimeoutMs)",
                    limits.idle.as_millis()
                ),
            ));
        };
        let Some(chunk) = next else { break };
        let Ok(chunk) = chunk else {
            return Err(ClientError::bad_request(
                "incomplete_body",
                None,
                "the request body ended early or its encoding is broken",
            ));
        };
        let so_far = whole
            .len()
            .saturating_add(first.as_ref().map_or(0, Bytes::len));
        if so_far.saturating_add(chunk.len()) > limits.max_bytes {
            return Err(too_large(limits.max_bytes));
        }
        held.take(chunk.len(), limits.max_memory)?;
        match first.take() {
            None if whole.is_empty() => first = Some(chunk),
            None => whole.extend_from_slice(&chunk),
            Some(earlier) => {
                let expected = declared.unwrap_or(0).min(RESERVE_AT_MOST);
                whole.reserve(expected.max(earlier.len().saturating_add(chunk.len())));
                whole.extend_from_slice(&earlier);
                whole.extend_from_slice(&chunk);
            }
        }
    }
    Ok(first.unwrap_or_else(|| whole.freeze()))
}

/// Reserved at once on the word of `content-length`, bytes.
const RESERVE_AT_MOST: usize = 1 << 20;

fn too_large(max: usize) -> ClientError {
    ClientError::new(
        413,
        "request_too_large",
        format!("the request body is larger than {max} bytes (server.maxBodyBytes)"),
    )
}
