//! One keep-alive connection of a client: a request out, an answer in, with the times that matter.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::chunked::{Broken, Decoder};

/// Header fields an answer may have; more is an error.
const HEADERS_MAX: usize = 64;
/// Bytes an answer may have; more is an error.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// Room made before each read.
const READ_BYTES: usize = 16 << 10;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error("connection: {0}")]
    Io(#[from] io::Error),
    #[error("connection closed before the answer's end")]
    Cut,
    #[error("not HTTP: {0}")]
    Head(#[from] httparse::Error),
    #[error(transparent)]
    Chunked(#[from] Broken),
    #[error("an answer with neither length nor chunks")]
    NoLength,
    #[error("an answer of more than {ANSWER_BYTES_MAX} bytes")]
    TooLong,
}

/// A complete answer.
pub(crate) struct Answer<'a> {
    pub(crate) status: u16,
    pub(crate) body: &'a [u8],
    /// When the first byte of the body was there.
    pub(crate) first_byte: Instant,
    /// When the last byte of the body was there.
    pub(crate) end: Instant,
}

/// What the head of an answer says about the rest.
#[derive(Debug)]
struct Head {
    bytes: usize,
    status: u16,
    framing: Framing,
    closes: bool,
}

#[derive(Debug)]
enum Framing {
    Length(usize),
    Chunked(Decoder),
}

/// A connection; it connects on its first call, and again after an error or when told to close.
pub(crate) struct Connection {
    address: SocketAddr,
    socket: Option<TcpStream>,
    input: Vec<u8>,
    body: Vec<u8>,
}

impl Connection {
    pub(crate) fn to(address: SocketAddr) -> Self {
        Self {
            address,
            socket: None,
            input: Vec::new(),
            body: Vec::new(),
        }
    }

    /// Sends `request` and reads the whole answer.
    pub(crate) async fn call(&mut self, request: &[u8]) -> Result<Answer<'_>, CallError> {
        // Taken out, so that a call that fails or is dropped leaves no half-used connection behind.
        let mut socket = match self.socket.take() {
            Some(socket) => socket,
            None => connect(self.address).await?,
        };
        self.input.clear();
        self.body.clear();
        socket.write_all(request).await?;
        let mut head = loop {
            fill(&mut socket, &mut self.input).await?;
            if let Some(head) = Head::parse(&self.input)? {
                break head;
            }
        };
        self.input.drain(..head.bytes);
        let mut first_byte = None;
        loop {
            let done = head.framing.take(&mut self.input, &mut self.body)?;
            if first_byte.is_none() && (done || !self.body.is_empty()) {
                first_byte = Some(Instant::now());
            }
            if done {
                break;
            }
            if self.body.len() > ANSWER_BYTES_MAX {
                return Err(CallError::TooLong);
            }
            fill(&mut socket, &mut self.input).await?;
        }
        if !head.closes {
            self.socket = Some(socket);
        }
        let end = Instant::now();
        Ok(Answer {
            status: head.status,
            body: &self.body,
            first_byte: first_byte.unwrap_or(end),
            end,
        })
    }
}

async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpStream::connect(address).await?;
    socket.set_nodelay(true)?;
    Ok(socket)
}

async fn fill(socket: &mut TcpStream, input: &mut Vec<u8>) -> Result<(), CallError> {
    if input.len() > ANSWER_BYTES_MAX {
        return Err(CallError::TooLong);
    }
    input.reserve(READ_BYTES);
    match socket.read_buf(input).await? {
        0 => Err(CallError::Cut),
        _ => Ok(()),
    }
}

impl Head {
    /// `None` while the head is incomplete.
    fn parse(input: &[u8]) -> Result<Option<Self>, CallError> {
        let mut fields = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut response = httparse::Response::new(&mut fields);
        let httparse::Status::Complete(bytes) = response.parse(input)? else {
            return Ok(None);
        };
        let (mut framing, mut closes) = (None, false);
        for field in response.headers.iter() {
            let value = str::from_utf8(field.value).unwrap_or_default();
            if field.name.eq_ignore_ascii_case("content-length") {
                framing = value.parse().ok().map(Framing::Length);
            } else if field.name.eq_ignore_ascii_case("transfer-encoding") {
                framing = Some(Framing::Chunked(Decoder::default()));
            } else if field.name.eq_ignore_ascii_case("connection") {
                closes = value.eq_ignore_ascii_case("close");
            }
        }
        Ok(Some(Self {
            bytes,
            status: response.code.unwrap_or_default(),
            framing: framing.ok_or(CallError::NoLength)?,
            closes,
        }))
    }
}

impl Framing {
    /// Moves what belongs to the body from `input` to `body`; true at the body's end.
    fn take(&mut self, input: &mut Vec<u8>, body: &mut Vec<u8>) -> Result<bool, CallError> {
        match self {
            Self::Length(left) => {
                let count = input.len().min(*left);
                body.extend(input.drain(..count));
                *left = left.saturating_sub(count);
                Ok(*left == 0)
            }
            Self::Chunked(decoder) => {
                let count = decoder.decode(input, body)?;
                input.drain(..count);
                Ok(decoder.is_done())
            }
        }
    }
}

#[cfg(test)]
mod tests;
