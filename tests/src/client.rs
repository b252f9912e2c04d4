//! HTTP requests against a node: whole answers, streams read as they come, and
//! raw bytes for what no proper client would send. Each call has a connection
//! of its own, so dropping it is a client going away.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{HeaderMap, Request};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::wait::within;

/// How long a call may take before the test fails.
const DEADLINE: Duration = Duration::from_mins(1);

/// A request being put together.
#[derive(Clone, Debug)]
pub struct Call {
    addr: SocketAddr,
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Bytes,
}

impl Call {
    /// A request without a body.
    pub fn new(addr: SocketAddr, method: &str, path: &str) -> Self {
        Self {
            addr,
            method: method.into(),
            path: path.into(),
            headers: Vec::new(),
            body: Bytes::new(),
        }
    }

    /// Adds a header; `host` replaces the usual one.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Presents a key.
    #[must_use]
    pub fn bearer(self, key: &str) -> Self {
        self.header("authorization", &format!("Bearer {key}"))
    }

    /// Sets a JSON body.
    #[must_use]
    pub fn json(self, body: &Value) -> Self {
        self.body("application/json", body.to_string())
    }

    /// Sets a body of any type.
    #[must_use]
    pub fn body(mut self, content_type: &str, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self.header("content-type", content_type)
    }

    /// Sends it and waits for the head of the answer.
    pub async fn open(self) -> Streaming {
        match within(DEADLINE, "an answer begins", self.try_open()).await {
            Ok(streaming) => streaming,
            Err(error) => panic!("no answer: {error}"),
        }
    }

    /// Sends it and waits for the whole answer.
    pub async fn send(self) -> Answer {
        match within(DEADLINE, "an answer is complete", self.try_send()).await {
            Ok(answer) => answer,
            Err(error) => panic!("no answer: {error}"),
        }
    }

    /// Like [`Call::send`], for where no answer is an outcome too.
    pub async fn try_send(self) -> Result<Answer, String> {
        let started = Instant::now();
        let mut streaming = self.try_open().await?;
        let end = streaming.read_to_end().await;
        if let End::Broken(error) = end {
            return Err(error);
        }
        Ok(Answer {
            status: streaming.status,
            headers: streaming.headers.clone(),
            body: Bytes::from(std::mem::take(&mut streaming.bytes)),
            took: started.elapsed(),
        })
    }

    /// Like [`Call::open`], for where no answer is an outcome too.
    pub async fn try_open(self) -> Result<Streaming, String> {
        let stream = TcpStream::connect(self.addr)
            .await
            .map_err(|error| error.to_string())?;
        stream
            .set_nodelay(true)
            .map_err(|error| error.to_string())?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake::<_, Full<Bytes>>(TokioIo::new(stream))
                .await
                .map_err(|error| error.to_string())?;
        let connection = Connection(tokio::spawn(async move {
            // The error, if any, is told by the body or the request.
            drop(connection.await);
        }));
        let mut request = Request::builder()
            .method(self.method.as_str())
            .uri(&self.path);
        let host = self.addr.to_string();
        if !self.headers.iter().any(|(name, _)| name == "host") {
            request = request.header("host", host);
        }
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let request = request
            .body(Full::new(self.body))
            .map_err(|error| error.to_string())?;
        let response = sender
            .send_request(request)
            .await
            .map_err(|error| format!("{error:?}"))?;
        let (head, body) = response.into_parts();
        Ok(Streaming {
            status: head.status.as_u16(),
            headers: head.headers,
            body,
            bytes: Vec::new(),
            end: None,
            _connection: connection,
        })
    }
}

/// Closes the connection when dropped.
struct Connection(JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
    /// From the connect to the last byte.
    pub took: Duration,
}

impl Answer {
    /// A header as text, if it is there.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    pub fn json(&self) -> Value {
        match serde_json::from_slice(&self.body) {
            Ok(value) => value,
            Err(error) => panic!("{error} in the body of a {}: {}", self.status, self.text()),
        }
    }

    /// The code in the error object.
    pub fn code(&self) -> String {
        let body = self.json();
        match &body["error"]["code"] {
            Value::String(code) => code.clone(),
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::Array(_)
            | Value::Object(_) => panic!("no error.code in {body}"),
        }
    }

    /// `Retry-After` in seconds, if it is there.
    pub fn retry_after(&self) -> Option<u64> {
        let text = self.header("retry-after")?;
        let Ok(seconds) = text.parse() else {
            panic!("Retry-After is not whole seconds: {text}");
        };
        Some(seconds)
    }

    /// Itself, after a look at the status.
    pub fn expect_status(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", self.text());
        self
    }
}

/// How a body ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// As its framing says.
    Clean,
    /// In the middle.
    Broken(String),
}

/// An answer that is read as it comes.
pub struct Streaming {
    /// The status.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    body: Incoming,
    bytes: Vec<u8>,
    end: Option<End>,
    _connection: Connection,
}

impl Streaming {
    /// A header as text, if it is there.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// What has been read so far.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    /// The bytes that have been read so far.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Reads one more piece; false at the end.
    pub async fn read_more(&mut self) -> bool {
        if self.end.is_some() {
            return false;
        }
        match self.body.frame().await {
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    self.bytes.extend_from_slice(&data);
                }
                true
            }
            Some(Err(error)) => {
                self.end = Some(End::Broken(format!("{error:?}")));
                false
            }
            None => {
                self.end = Some(End::Clean);
                false
            }
        }
    }

    /// Reads until `needle` has come; panics when the stream ends or stalls before.
    pub async fn read_until(&mut self, needle: &str) {
        let reading = async {
            while !self.text().contains(needle) {
                let more = self.read_more().await;
                assert!(
                    more,
                    "ended ({:?}) before {needle:?}: {}",
                    self.end,
                    self.text()
                );
            }
        };
        within(DEADLINE, "the stream goes on", reading).await;
    }

    /// Reads everything that is left.
    pub async fn read_to_end(&mut self) -> End {
        let reading = async { while self.read_more().await {} };
        within(DEADLINE, "the stream ends", reading).await;
        self.end.clone().unwrap()
    }

    /// Reads everything and returns it; panics when the framing breaks.
    pub async fn finish(mut self) -> String {
        let end = self.read_to_end().await;
        assert_eq!(end, End::Clean, "after {}", self.text());
        self.text()
    }
}

/// Sends `bytes` as they are and reads until the peer closes or `limit` is over.
pub async fn raw(addr: SocketAddr, bytes: &[u8], limit: Duration) -> String {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    // A peer that refuses early may close before everything is written.
    drop(stream.write_all(bytes).await);
    read_raw(&mut stream, limit).await
}

/// Reads until the peer closes or `limit` is over.
pub async fn read_raw(stream: &mut TcpStream, limit: Duration) -> String {
    let mut answer = Vec::new();
    let reading = async { while let Ok(1..) = stream.read_buf(&mut answer).await {} };
    drop(tokio::time::timeout(limit, reading).await);
    String::from_utf8_lossy(&answer).into_owned()
}
