//! Reading requests off a keep-alive connection.

use std::io;

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

/// Header fields a request may have; more is an error.
const HEADERS_MAX: usize = 64;
/// Bytes of head and body a request may have; more is an error.
const REQUEST_BYTES_MAX: usize = 64 << 20;
/// Room made before each read, so that a large body takes few reads.
const READ_BYTES: usize = 64 << 10;

/// One request; only its body matters here.
pub(crate) struct Request<'a> {
    pub(crate) body: &'a [u8],
}

/// A connection and what has been read from it but not used.
pub(crate) struct Reader {
    socket: TcpStream,
    input: Vec<u8>,
    /// Bytes of `input` that belong to the request handed out last.
    used: usize,
}

impl Reader {
    pub(crate) fn new(socket: TcpStream) -> Self {
        Self {
            socket,
            input: Vec::new(),
            used: 0,
        }
    }

    pub(crate) fn socket(&mut self) -> &mut TcpStream {
        &mut self.socket
    }

    /// The next request, whole; `None` when the client closed between requests.
    pub(crate) async fn next(&mut self) -> io::Result<Option<Request<'_>>> {
        self.input.drain(..self.used);
        self.used = 0;
        let head = loop {
            if let Some(head) = Head::parse(&self.input)? {
                break head;
            }
            if !self.fill().await? {
                return Ok(None);
            }
        };
        let end = head.bytes.saturating_add(head.body_bytes);
        if end > REQUEST_BYTES_MAX {
            return Err(invalid("request too large"));
        }
        while self.input.len() < end {
            if !self.fill().await? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        self.used = end;
        Ok(self.input.get(head.bytes..end).map(|body| Request { body }))
    }

    /// Reads once; false at the end of the input.
    async fn fill(&mut self) -> io::Result<bool> {
        if self.input.len() > REQUEST_BYTES_MAX {
            return Err(invalid("request too large"));
        }
        self.input.reserve(READ_BYTES);
        Ok(self.socket.read_buf(&mut self.input).await? > 0)
    }
}

/// Where a request's head ends and how long its body is.
#[derive(Debug, PartialEq, Eq)]
struct Head {
    bytes: usize,
    body_bytes: usize,
}

impl Head {
    /// `None` while the head is incomplete. A body must have a length: a proxy that holds the whole
    /// request, as every one measured here does, sends it.
    fn parse(input: &[u8]) -> io::Result<Option<Self>> {
        let mut fields = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut fields);
        let status = request.parse(input).map_err(invalid)?;
        let httparse::Status::Complete(bytes) = status else {
            return Ok(None);
        };
        let mut body_bytes = 0;
        for field in request.headers.iter() {
            if field.name.eq_ignore_ascii_case("content-length") {
                let text = str::from_utf8(field.value).map_err(invalid)?;
                body_bytes = text.parse().map_err(invalid)?;
            } else if field.name.eq_ignore_ascii_case("transfer-encoding") {
                return Err(invalid("a request body needs a content-length"));
            }
        }
        Ok(Some(Self { bytes, body_bytes }))
    }
}

fn invalid(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests;
