//! What a request asks for, and the bytes that answer it.
//!
//! The `user` field says what to answer: `bench/plain` is one JSON object whose `system_fingerprint`
//! tells how many bytes of body arrived; `bench/stream/N/I` is N events and `[DONE]`, one event every I
//! microseconds, or all of them in one write where I is 0.

use std::time::Duration;

/// Starts the value of `user` in every request of the benchmark.
const MARK: &[u8] = b"\"bench/";
/// Events a stream may have.
const EVENTS_MAX: u32 = 10_000;
/// A stream has at least a role, one word and a finish reason.
const EVENTS_MIN: u32 = 3;
/// Digits that tell the size of the body; fixed, so that the answer's length is.
const SIZE_DIGITS: usize = 10;

const PLAIN_BODY: &str = concat!(
    r#"{"id":"chatcmpl-bench","object":"chat.completion","created":1700000000,"model":"m","#,
    r#""choices":[{"index":0,"message":{"role":"assistant","content":"All is well, and this is"#,
    r#" about as long as a short answer is."},"logprobs":null,"finish_reason":"stop"}],"#,
    r#""usage":{"prompt_tokens":9,"completion_tokens":16,"total_tokens":25},"#,
    r#""system_fingerprint":"received-"#,
);
const PLAIN_END: &str = "\"}";
const REFUSAL: &str = concat!(
    r#"{"error":{"message":"no bench/ instruction in this request","#,
    r#""type":"invalid_request_error","param":"user","code":null}}"#,
);
/// `x-accel-buffering: no` turns off nginx's `proxy_buffering` for this answer alone.
const STREAM_HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
    cache-control: no-cache\r\nx-accel-buffering: no\r\ntransfer-encoding: chunked\r\n\r\n";

/// What one request wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    Plain,
    Stream(Stream),
}

/// The shape of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stream {
    /// Events before `[DONE]`: a role, words, a finish reason.
    events: u32,
    /// Time between events; zero: all at once.
    pub(crate) interval: Duration,
}

impl Stream {
    /// Events that carry a word.
    pub(crate) fn words(self) -> u32 {
        self.events.saturating_sub(2)
    }
}

impl Ask {
    /// `None` where the body gives no instruction, or one that makes no sense.
    pub(crate) fn of(body: &[u8]) -> Option<Self> {
        let start = memchr::memmem::find(body, MARK)?.checked_add(MARK.len())?;
        let rest = body.get(start..)?;
        let end = memchr::memchr(b'"', rest)?;
        let mut words = str::from_utf8(rest.get(..end)?).ok()?.split('/');
        let ask = match words.next()? {
            "plain" => Self::Plain,
            "stream" => {
                let events = words.next()?.parse().ok()?;
                let interval = Duration::from_micros(words.next()?.parse().ok()?);
                if !(EVENTS_MIN..=EVENTS_MAX).contains(&events) {
                    return None;
                }
                Self::Stream(Stream { events, interval })
            }
            _ => return None,
        };
        words.next().is_none().then_some(ask)
    }
}

/// The ready-made pieces of every answer.
pub(crate) struct Replies {
    plain: Vec<u8>,
    refusal: Vec<u8>,
    start: Vec<u8>,
    word: Vec<u8>,
    end: Vec<u8>,
}

impl Replies {
    pub(crate) fn new() -> Self {
        let length = [PLAIN_BODY.len(), SIZE_DIGITS, PLAIN_END.len()]
            .iter()
            .sum();
        let mut start = STREAM_HEAD.as_bytes().to_vec();
        start.extend(event(r#"{"role":"assistant","content":""}"#, "null"));
        let mut end = event("{}", "\"stop\"");
        end.extend(chunk("data: [DONE]\n\n"));
        end.extend_from_slice(b"0\r\n\r\n");
        Self {
            plain: (head("200 OK", length) + PLAIN_BODY).into(),
            refusal: (head("400 Bad Request", REFUSAL.len()) + REFUSAL).into(),
            start,
            word: event(r#"{"content":" word"}"#, "null"),
            end,
        }
    }

    /// The answer to a request that says nothing useful.
    pub(crate) fn refuse(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.refusal);
    }

    /// One JSON object that tells the size of the request's body.
    pub(crate) fn plain(&self, out: &mut Vec<u8>, body_bytes: usize) {
        out.extend_from_slice(&self.plain);
        out.extend_from_slice(format!("{body_bytes:0SIZE_DIGITS$}").as_bytes());
        out.extend_from_slice(PLAIN_END.as_bytes());
    }

    /// A whole stream, each event in a chunk of its own.
    pub(crate) fn ready_stream(&self, out: &mut Vec<u8>, stream: Stream) {
        self.stream_start(out);
        self.stream_words(out, stream.words());
        self.stream_end(out);
    }

    /// The head and the role.
    pub(crate) fn stream_start(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.start);
    }

    /// `count` events of one word.
    pub(crate) fn stream_words(&self, out: &mut Vec<u8>, count: u32) {
        for _ in 0..count {
            out.extend_from_slice(&self.word);
        }
    }

    /// The finish reason, `[DONE]` and the end of the body.
    pub(crate) fn stream_end(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.end);
    }
}

fn head(status: &str, body_bytes: usize) -> String {
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {body_bytes}\r\n\r\n"
    )
}

fn event(delta: &str, finish_reason: &str) -> Vec<u8> {
    chunk(&format!(
        "data: {{\"id\":\"chatcmpl-bench\",\"object\":\"chat.completion.chunk\",\
         \"created\":1700000000,\"model\":\"m\",\"system_fingerprint\":\"fp_bench\",\
         \"choices\":[{{\"index\":0,\"delta\":{delta},\"logprobs\":null,\
         \"finish_reason\":{finish_reason}}}]}}\n\n"
    ))
}

fn chunk(text: &str) -> Vec<u8> {
    format!("{:x}\r\n{text}\r\n", text.len()).into()
}

#[cfg(test)]
mod tests;
