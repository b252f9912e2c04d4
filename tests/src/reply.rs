//! What the scripted upstream answers to one request, down to the byte.

use std::time::Duration;

use serde_json::Value;
use tokio::sync::watch;

/// A barrier that a test opens once; clones are the same barrier.
#[derive(Clone, Debug)]
pub struct Gate(watch::Sender<bool>);

impl Default for Gate {
    fn default() -> Self {
        Self::closed()
    }
}

impl Gate {
    /// A barrier that holds whoever comes.
    pub fn closed() -> Self {
        Self(watch::Sender::new(false))
    }

    /// Lets everyone pass, now and later.
    pub fn open(&self) {
        self.0.send_replace(true);
    }

    /// Waits until it is open.
    pub async fn pass(&self) {
        let mut seen = self.0.subscribe();
        seen.wait_for(|open| *open).await.unwrap();
    }
}

/// One thing the upstream does while it answers.
#[derive(Clone, Debug)]
pub enum Act {
    /// Writes these bytes as they are.
    Send(Vec<u8>),
    /// Waits this long.
    Wait(Duration),
    /// Waits for the test.
    Gate(Gate),
}

/// What becomes of the connection after the last act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// It stays open for the next request.
    KeepOpen,
    /// It is closed in order (FIN).
    Close,
    /// It is reset (RST).
    Reset,
    /// Nothing more happens until the peer closes.
    Hang,
}

/// How the body is framed on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    /// `Content-Length`.
    Length,
    /// `Transfer-Encoding: chunked`.
    Chunked,
    /// Until the connection closes.
    Close,
    /// The acts are the whole answer, head included.
    Raw,
}

#[derive(Clone, Debug)]
enum Piece {
    Data(Vec<u8>),
    Wait(Duration),
    Gate(Gate),
}

/// One scripted answer.
#[derive(Clone, Debug)]
pub struct Reply {
    before: Vec<Act>,
    status: u16,
    headers: Vec<(String, String)>,
    framing: Framing,
    pieces: Vec<Piece>,
    /// `None` is the framing's own proper end.
    finish: Option<Finish>,
}

impl Reply {
    fn new(status: u16, content_type: &str, framing: Framing) -> Self {
        Self {
            before: Vec::new(),
            status,
            headers: vec![("content-type".into(), content_type.into())],
            framing,
            pieces: Vec::new(),
            finish: None,
        }
    }

    /// A whole JSON answer.
    pub fn json(status: u16, body: &Value) -> Self {
        Self::text(status, "application/json", &body.to_string())
    }

    /// A whole answer of any type.
    pub fn text(status: u16, content_type: &str, body: &str) -> Self {
        Self::bytes(status, content_type, body.as_bytes())
    }

    /// A whole answer of any bytes.
    pub fn bytes(status: u16, content_type: &str, body: &[u8]) -> Self {
        let mut reply = Self::new(status, content_type, Framing::Length);
        reply.pieces.push(Piece::Data(body.to_vec()));
        reply
    }

    /// A failure as OpenAI-like servers tell it.
    pub fn error(status: u16, message: &str) -> Self {
        Self::json(
            status,
            &serde_json::json!({"error": {"message": message, "type": "error", "code": null}}),
        )
    }

    /// A 429 with `Retry-After`.
    pub fn limited(retry_after_s: u64) -> Self {
        Self::error(429, "slow down").header("retry-after", &retry_after_s.to_string())
    }

    /// A chunked event stream, each piece a chunk of its own.
    pub fn sse() -> Self {
        Self::new(200, "text/event-stream", Framing::Chunked)
    }

    /// An event stream of these frames, properly ended.
    pub fn frames<S: AsRef<str>>(frames: &[S]) -> Self {
        frames
            .iter()
            .fold(Self::sse(), |reply, frame| reply.send(frame.as_ref()))
    }

    /// These bytes and nothing else, then a close.
    pub fn wire(bytes: &[u8]) -> Self {
        let mut reply = Self::new(0, "", Framing::Raw);
        reply.pieces.push(Piece::Data(bytes.to_vec()));
        reply.finish = Some(Finish::Close);
        reply
    }

    /// No answer at all: the connection ends as `finish` says.
    pub fn nothing(finish: Finish) -> Self {
        let mut reply = Self::wire(b"");
        reply.finish = Some(finish);
        reply
    }

    /// Adds a header, replacing an earlier one of that name.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers
            .retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Adds one chunk of text.
    #[must_use]
    pub fn send(self, text: &str) -> Self {
        self.send_bytes(text.as_bytes())
    }

    /// Adds one chunk of bytes.
    #[must_use]
    pub fn send_bytes(mut self, bytes: &[u8]) -> Self {
        self.pieces.push(Piece::Data(bytes.to_vec()));
        self
    }

    /// Pauses between two chunks.
    #[must_use]
    pub fn wait_ms(mut self, ms: u64) -> Self {
        self.pieces.push(Piece::Wait(Duration::from_millis(ms)));
        self
    }

    /// Holds the rest until the test opens `gate`.
    #[must_use]
    pub fn hold(mut self, gate: &Gate) -> Self {
        self.pieces.push(Piece::Gate(gate.clone()));
        self
    }

    /// Waits before the first byte of the answer.
    #[must_use]
    pub fn after_ms(mut self, ms: u64) -> Self {
        self.before.push(Act::Wait(Duration::from_millis(ms)));
        self
    }

    /// Holds the whole answer until the test opens `gate`.
    #[must_use]
    pub fn behind(mut self, gate: &Gate) -> Self {
        self.before.push(Act::Gate(gate.clone()));
        self
    }

    /// Ends the body by closing the connection, without chunks or a length.
    #[must_use]
    pub fn close_delimited(mut self) -> Self {
        self.framing = Framing::Close;
        self
    }

    /// Stops after the last piece as `finish` says, without the framing's end.
    #[must_use]
    pub fn end(mut self, finish: Finish) -> Self {
        self.finish = Some(finish);
        self
    }

    /// Cuts all data into pieces of `size` bytes, each written for itself.
    #[must_use]
    pub fn in_pieces_of(mut self, size: usize) -> Self {
        self.pieces = self
            .pieces
            .into_iter()
            .flat_map(|piece| match piece {
                Piece::Data(data) => data
                    .chunks(size.max(1))
                    .map(|part| Piece::Data(part.to_vec()))
                    .collect(),
                pause @ (Piece::Wait(_) | Piece::Gate(_)) => vec![pause],
            })
            .collect();
        self
    }

    /// Joins all data and cuts it once, after `at` bytes.
    #[must_use]
    pub fn cut_at(mut self, at: usize) -> Self {
        let mut all = self.data();
        let tail = all.split_off(at.min(all.len()));
        self.pieces = vec![
            Piece::Data(all),
            Piece::Wait(Duration::from_millis(1)),
            Piece::Data(tail),
        ];
        self
    }

    /// All data of the body, without pauses.
    pub fn data(&self) -> Vec<u8> {
        let mut all = Vec::new();
        for piece in &self.pieces {
            if let Piece::Data(data) = piece {
                all.extend_from_slice(data);
            }
        }
        all
    }

    /// The acts that put this answer on the wire, and how the connection ends.
    pub fn script(&self) -> (Vec<Act>, Finish) {
        let mut acts = self.before.clone();
        if self.framing != Framing::Raw {
            acts.push(Act::Send(self.head().into_bytes()));
        }
        for piece in &self.pieces {
            acts.push(match piece {
                Piece::Data(data) if data.is_empty() => continue,
                Piece::Data(data) => Act::Send(self.framed(data)),
                Piece::Wait(time) => Act::Wait(*time),
                Piece::Gate(gate) => Act::Gate(gate.clone()),
            });
        }
        let finish = match (self.finish, self.framing) {
            (Some(finish), _) => finish,
            (None, Framing::Close | Framing::Raw) => Finish::Close,
            (None, Framing::Length) => Finish::KeepOpen,
            (None, Framing::Chunked) => {
                acts.push(Act::Send(b"0\r\n\r\n".to_vec()));
                Finish::KeepOpen
            }
        };
        (acts, finish)
    }

    fn head(&self) -> String {
        let mut head = format!("HTTP/1.1 {} Scripted\r\n", self.status);
        for (name, value) in &self.headers {
            head.extend([name.as_str(), ": ", value, "\r\n"]);
        }
        match self.framing {
            Framing::Length if self.header_value("content-length").is_none() => {
                let length = self.data().len().to_string();
                head.extend(["content-length: ", &length, "\r\n"]);
            }
            Framing::Chunked => head.push_str("transfer-encoding: chunked\r\n"),
            Framing::Close => head.push_str("connection: close\r\n"),
            Framing::Length | Framing::Raw => {}
        }
        head.push_str("\r\n");
        head
    }

    fn header_value(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    fn framed(&self, data: &[u8]) -> Vec<u8> {
        if self.framing != Framing::Chunked {
            return data.to_vec();
        }
        let mut chunk = format!("{:x}\r\n", data.len()).into_bytes();
        chunk.extend_from_slice(data);
        chunk.extend_from_slice(b"\r\n");
        chunk
    }
}
