//! Just enough HTTP/1.1 to read what a client sends.

use std::io::Read;

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

/// A request, unframed.
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Request {
    /// The key it presents, wherever providers look for it.
    pub(crate) fn key(&self) -> String {
        for name in ["authorization", "x-api-key", "api-key", "x-goog-api-key"] {
            if let Some(value) = header(&self.headers, name) {
                return value.trim_start_matches("Bearer ").to_owned();
            }
        }
        String::new()
    }
}

fn header<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    headers
        .iter()
        .find(|(known, _)| known == name)
        .map(|(_, value)| value.as_str())
}

/// Reads one request; `None` when the peer closes or sends something else.
/// `buffer` holds what was read beyond it.
pub(crate) async fn read_request(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<Request> {
    let end = loop {
        if let Some(at) = find(buffer, b"\r\n\r\n") {
            break at + 4;
        }
        fill(stream, buffer).await?;
    };
    let head = String::from_utf8_lossy(&buffer[..end]).into_owned();
    buffer.drain(..end);
    let mut lines = head.lines();
    let mut first = lines.next()?.split(' ');
    let (method, path) = (first.next()?.to_owned(), first.next()?.to_owned());
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let chunked = header(&headers, "transfer-encoding").is_some();
    let length = header(&headers, "content-length").and_then(|text| text.parse().ok());
    let body = match (chunked, length) {
        (true, _) => read_chunks(stream, buffer).await?,
        (false, Some(length)) => take(stream, buffer, length).await?,
        (false, None) => Vec::new(),
    };
    Some(Request {
        method,
        path,
        headers,
        body,
    })
}

async fn read_chunks(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = loop {
            if let Some(at) = find(buffer, b"\r\n") {
                break at;
            }
            fill(stream, buffer).await?;
        };
        let size = String::from_utf8_lossy(&buffer[..end]).into_owned();
        buffer.drain(..end + 2);
        let size = usize::from_str_radix(size.split(';').next()?.trim(), 16).ok()?;
        let mut chunk = take(stream, buffer, size + 2).await?;
        if size == 0 {
            return Some(body);
        }
        chunk.truncate(size);
        body.append(&mut chunk);
    }
}

async fn take(stream: &mut TcpStream, buffer: &mut Vec<u8>, length: usize) -> Option<Vec<u8>> {
    while buffer.len() < length {
        fill(stream, buffer).await?;
    }
    Some(buffer.drain(..length).collect())
}

async fn fill(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<()> {
    match stream.read_buf(buffer).await {
        Ok(1..) => Some(()),
        Ok(0) | Err(_) => None,
    }
}

fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    bytes.windows(needle.len()).position(|at| at == needle)
}

/// Inflates gzip.
pub(crate) fn gunzip(bytes: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    flate2::read::MultiGzDecoder::new(bytes)
        .read_to_end(&mut plain)
        .expect("not gzip");
    plain
}
