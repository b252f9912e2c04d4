//! The built-in provider that answers in the process: for first steps, tests
//! and load. The model's name says what it does.
//!
//! | model | behaviour |
//! |---|---|
//! | `ok` | a short answer |
//! | `echo` | the last user message comes back |
//! | `status-NNN` | that HTTP status, with `Retry-After` when `retryAfterMs` is set |
//! | `slow` | `ok` after `latencyMs` (5000) |
//! | `drip` | `ok`, `tokensPerSecond` (5) |
//! | `stall` | begins, then says nothing more |
//! | `drop` | begins, then the connection breaks |
//!
//! `providerSpecificData` of its connection: `latencyMs`, `tokens`,
//! `tokensPerSecond`, `retryAfterMs`, `failEvery` (each n-th call answers 503).

mod wire;

use std::collections::VecDeque;
use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header};
use serde_json::{Value, json};
use shared_proto::config::Connection;
use shared_proto::protocol::Protocol;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::request::facts::Facts;
use crate::timer::after;
use crate::upstream::answer::{Answer, AnswerBody, Broken};

/// The models that `GET /v1/models` lists.
pub(crate) const MODELS: [&str; 8] = [
    "ok",
    "echo",
    "slow",
    "drip",
    "stall",
    "drop",
    "status-429",
    "status-503",
];

/// Tokens of one answer at most.
const MAX_TOKENS: u64 = 100_000;
/// Longest pause, ms.
const MAX_PAUSE_MS: u64 = 600_000;

/// What a connection asks of its simulation.
struct Script {
    latency: Duration,
    tokens: u64,
    pause: Duration,
    retry_after_ms: Option<u64>,
    fails: bool,
}

impl Script {
    fn read(model: &str, connection: &Connection, calls: u64) -> Self {
        let number = |key: &str| {
            connection
                .provider_specific
                .get(key)
                .and_then(Value::as_u64)
        };
        let drip = (model == "drip").then_some(5);
        let per_second = number("tokensPerSecond").or(drip).unwrap_or(0);
        let pause = 1000_u64.checked_div(per_second).unwrap_or(0);
        let latency = number("latencyMs").unwrap_or(if model == "slow" { 5000 } else { 0 });
        let every = number("failEvery").unwrap_or(0);
        Self {
            latency: Duration::from_millis(latency.min(MAX_PAUSE_MS)),
            tokens: number("tokens").unwrap_or(8).clamp(1, MAX_TOKENS),
            pause: Duration::from_millis(pause.min(MAX_PAUSE_MS)),
            retry_after_ms: number("retryAfterMs"),
            fails: calls.checked_rem(every) == Some(0),
        }
    }
}

/// The answer of `model` at `connection`, its `calls`-th.
pub(crate) async fn answer(
    protocol: Protocol,
    facts: &Facts,
    model: &str,
    connection: &Connection,
    calls: u64,
) -> Answer {
    let script = Script::read(model, connection, calls);
    if !script.latency.is_zero() {
        tokio::time::sleep(script.latency).await;
    }
    let status = model
        .strip_prefix("status-")
        .and_then(|status| status.parse().ok());
    let status = status.filter(|status| (400..600).contains(status));
    let failing = script.fails.then_some(503);
    if let Some(status) = status.or(failing) {
        return refusal(status, &script);
    }
    let words: Vec<String> = if model == "echo" {
        wire::last_user_text(&facts.body)
            .split_inclusive(' ')
            .map(str::to_owned)
            .collect()
    } else {
        (0..script.tokens)
            .map(|n| {
                if n == 0 {
                    "pong".to_owned()
                } else {
                    " pong".to_owned()
                }
            })
            .collect()
    };
    let end = match model {
        "stall" => End::Hang,
        "drop" => End::Break,
        _ => End::Clean,
    };
    let (content_type, chunks) = if facts.stream {
        ("text/event-stream", wire::stream(protocol, model, &words))
    } else {
        (
            "application/json",
            vec![wire::whole(protocol, model, &words)],
        )
    };
    respond(
        200,
        content_type,
        SimulatedBody::new(chunks, &script, end, facts.stream),
    )
}

fn refusal(status: u16, script: &Script) -> Answer {
    let body = json!({"error": {
        "message": format!("simulated status {status}"),
        "type": "simulated_error",
        "code": format!("simulated_{status}"),
    }});
    let body = vec![Bytes::from(body.to_string())];
    let mut answer = respond(
        status,
        "application/json",
        SimulatedBody::new(body, script, End::Clean, false),
    );
    if let Some(ms) = script.retry_after_ms {
        answer
            .headers
            .insert("retry-after-ms", HeaderValue::from(ms));
        answer
            .headers
            .insert(header::RETRY_AFTER, HeaderValue::from(ms.div_ceil(1000)));
    }
    answer
}

fn respond(status: u16, content_type: &'static str, body: SimulatedBody) -> Answer {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    Answer {
        status,
        headers,
        body: AnswerBody::Simulated(body),
    }
}

/// How a simulated body ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Clean,
    Break,
    Hang,
}

/// A body that plays its chunks.
pub(crate) struct SimulatedBody {
    chunks: VecDeque<Bytes>,
    pause: Option<(Duration, Pin<Box<Sleep>>)>,
    end: End,
}

impl SimulatedBody {
    fn new(chunks: Vec<Bytes>, script: &Script, end: End, stream: bool) -> Self {
        let mut chunks = VecDeque::from(chunks);
        // A body that does not end well breaks off after its first content.
        match end {
            End::Clean => {}
            End::Break | End::Hang if stream => chunks.truncate(2),
            End::Break | End::Hang => chunks.clear(),
        }
        let paced = stream && !script.pause.is_zero();
        Self {
            chunks,
            pause: paced.then(|| {
                let first = sleep_until(after(Instant::now(), script.pause));
                (script.pause, Box::pin(first))
            }),
            end,
        }
    }

    /// The next chunk; `None` at a clean end.
    pub(crate) fn poll_chunk(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Broken>>> {
        if self.chunks.is_empty() {
            return match self.end {
                End::Clean => Poll::Ready(None),
                End::Break => Poll::Ready(Some(Err(Broken))),
                End::Hang => Poll::Pending,
            };
        }
        if let Some((every, timer)) = &mut self.pause {
            std::task::ready!(timer.as_mut().poll(cx));
            timer.as_mut().reset(after(Instant::now(), *every));
        }
        Poll::Ready(self.chunks.pop_front().map(Ok))
    }
}
