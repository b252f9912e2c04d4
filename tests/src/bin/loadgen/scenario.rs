//! The scenarios: what is asked, how hard, and what a right answer is.

use std::fmt::Write as _;
use std::net::SocketAddr;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Lines of text in one message of a long conversation; about 2 KB.
const MESSAGE_LINES: usize = 50;
/// How much longer or shorter a proxy may make a body that it passes on: it may rename the model.
const REWRITE_BYTES_MAX: usize = 64;
/// Precedes the size of the body in the upstream's answer.
const ECHO: &[u8] = b"\"received-";
/// Digits of that size.
const ECHO_DIGITS: usize = 10;

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Scenario {
    /// Nothing is sent.
    Idle,
    /// Small requests and answers, as fast as 64 connections can.
    Small,
    /// Requests of 200 KB with small answers, as fast as 64 connections can.
    Large,
    /// 64 streams at a time of 200 events, one every 5 ms.
    PacedStreams,
    /// Streams of 20 events that are ready at once, as fast as 64 connections can.
    ReadyStreams,
    /// 200 small requests a second.
    Latency,
    /// 100 streams a second of 10 events, one every 5 ms.
    FirstByte,
}

/// How requests follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// Not at all.
    Idle,
    /// Each connection sends its next request when it has its answer.
    Closed { connections: u32 },
    /// At a fixed rate, whatever the answers do.
    Open { connections: u32, per_second: u32 },
}

/// What one request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Workload {
    /// A body of at least `body_bytes`, a JSON answer.
    Plain { body_bytes: usize },
    /// A small body, a stream of `events` and `[DONE]`, an event every `interval_us`; 0: all at once.
    Stream { events: usize, interval_us: u32 },
}

impl Scenario {
    pub(crate) fn load(self) -> Load {
        match self {
            Self::Idle => Load::Idle,
            Self::Small | Self::Large | Self::PacedStreams | Self::ReadyStreams => {
                Load::Closed { connections: 64 }
            }
            Self::Latency => Load::Open {
                connections: 16,
                per_second: 200,
            },
            Self::FirstByte => Load::Open {
                connections: 32,
                per_second: 100,
            },
        }
    }

    pub(crate) fn workload(self) -> Workload {
        match self {
            Self::Idle | Self::Small | Self::Latency => Workload::Plain { body_bytes: 0 },
            Self::Large => Workload::Plain {
                body_bytes: 200_000,
            },
            Self::PacedStreams => Workload::Stream {
                events: 200,
                interval_us: 5_000,
            },
            Self::ReadyStreams => Workload::Stream {
                events: 20,
                interval_us: 0,
            },
            Self::FirstByte => Workload::Stream {
                events: 10,
                interval_us: 5_000,
            },
        }
    }
}

/// Why an answer is wrong.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Wrong {
    #[error("status {status}: {start}")]
    Status { status: u16, start: String },
    #[error("upstream received {received:?} bytes of a body of {sent}")]
    Received {
        received: Option<usize>,
        sent: usize,
    },
    #[error("the JSON does not end")]
    Unended,
    #[error("{events} events, expected {expected}")]
    Events { events: usize, expected: usize },
    #[error("the last event is not [DONE]")]
    NotDone,
    #[error("{bytes} bytes, earlier answers had {earlier}")]
    Length { bytes: usize, earlier: usize },
}

/// A request ready to send, and what its answer must be.
pub(crate) struct Request {
    /// Head and body.
    pub(crate) bytes: Vec<u8>,
    body_bytes: usize,
    workload: Workload,
}

impl Request {
    pub(crate) fn new(workload: Workload, host: SocketAddr) -> Self {
        let body = match workload {
            Workload::Plain { body_bytes } => body("bench/plain", false, body_bytes),
            Workload::Stream {
                events,
                interval_us,
            } => body(&format!("bench/stream/{events}/{interval_us}"), true, 0),
        };
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer bench\r\n\
             user-agent: loadgen\r\naccept: application/json\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n",
            body.len()
        );
        Self {
            bytes: (head + &body).into(),
            body_bytes: body.len(),
            workload,
        }
    }

    /// Whether a complete answer is the right one.
    pub(crate) fn check(&self, status: u16, body: &[u8]) -> Result<(), Wrong> {
        if status != 200 {
            let start = body.get(..200).unwrap_or(body);
            let start = String::from_utf8_lossy(start).into();
            return Err(Wrong::Status { status, start });
        }
        match self.workload {
            Workload::Plain { body_bytes: _ } => self.check_plain(body),
            Workload::Stream {
                events,
                interval_us: _,
            } => check_stream(body, events),
        }
    }

    fn check_plain(&self, body: &[u8]) -> Result<(), Wrong> {
        let sent = self.body_bytes;
        let received = received(body);
        if received.is_none_or(|received| received.abs_diff(sent) > REWRITE_BYTES_MAX) {
            return Err(Wrong::Received { received, sent });
        }
        let ends = body.trim_ascii_end().ends_with(b"}");
        ends.then_some(()).ok_or(Wrong::Unended)
    }
}

/// The size of the request's body as the upstream tells it.
fn received(body: &[u8]) -> Option<usize> {
    let start = memchr::memmem::find(body, ECHO)?.checked_add(ECHO.len())?;
    let digits = body.get(start..start.checked_add(ECHO_DIGITS)?)?;
    str::from_utf8(digits).ok()?.parse().ok()
}

fn check_stream(body: &[u8], expected: usize) -> Result<(), Wrong> {
    let Some(body) = body.strip_suffix(b"data: [DONE]\n\n") else {
        return Err(Wrong::NotDone);
    };
    match memchr::memmem::find_iter(body, b"data: {").count() {
        events if events == expected => Ok(()),
        events => Err(Wrong::Events { events, expected }),
    }
}

/// A chat of at least `bytes`, in messages of a usual length with the usual escapes.
fn body(user: &str, stream: bool, bytes: usize) -> String {
    let mut body = format!(
        r#"{{"model":"mock/m","user":"{user}","stream":{stream},"temperature":0.7,"messages":["#
    );
    body.push_str(r#"{"role":"system","content":"You are a helpful assistant."},"#);
    body.push_str(r#"{"role":"user","content":"How are you?"}"#);
    let line = r#"A line of code, say: let s = \"text\";\n"#;
    let text = line.repeat(MESSAGE_LINES);
    let mut roles = ["assistant", "user"].iter().cycle();
    while body.len() < bytes {
        let role = roles.next().unwrap_or(&"user");
        // Writing to a String cannot fail.
        let _ = write!(body, r#",{{"role":"{role}","content":"{text}"}}"#);
    }
    body.push_str("]}");
    body
}

#[cfg(test)]
mod tests;
