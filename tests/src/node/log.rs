//! What a process prints, line by line, from both of its streams.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::wait::{SOON, within};

/// The captured output of a process.
pub struct Log {
    lines: Arc<watch::Sender<Vec<String>>>,
    readers: Vec<JoinHandle<()>>,
}

impl Log {
    /// Reads both streams until they close.
    pub fn follow(
        stdout: impl AsyncRead + Unpin + Send + 'static,
        stderr: impl AsyncRead + Unpin + Send + 'static,
    ) -> Self {
        let lines = Arc::new(watch::Sender::new(Vec::new()));
        let readers = vec![
            tokio::spawn(read(stdout, Arc::clone(&lines))),
            tokio::spawn(read(stderr, Arc::clone(&lines))),
        ];
        Self { lines, readers }
    }

    /// All lines so far.
    pub fn lines(&self) -> Vec<String> {
        self.lines.borrow().clone()
    }

    /// All lines so far, as one text.
    pub fn text(&self) -> String {
        self.lines().join("\n")
    }

    /// The lines that are JSON objects.
    pub fn records(&self) -> Vec<Value> {
        let lines = self.lines();
        let parsed = lines.iter().filter_map(|line| object(line));
        parsed.collect()
    }

    /// Waits for a line for which `wanted` is true.
    pub async fn line(&self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let mut lines = self.lines.subscribe();
        let found = lines.wait_for(|lines| lines.iter().any(|line| wanted(line)));
        let lines = within(SOON, what, found).await.unwrap();
        lines.iter().find(|line| wanted(line)).unwrap().clone()
    }

    /// Waits until something new was printed, at most `limit`.
    pub async fn changed(&self, limit: Duration) {
        let mut lines = self.lines.subscribe();
        drop(tokio::time::timeout(limit, lines.changed()).await);
    }

    /// Waits until both streams are closed.
    pub async fn closed(&self) {
        let ended = || self.readers.iter().all(JoinHandle::is_finished);
        crate::wait::eventually("the output closes", || async { ended().then_some(()) }).await;
    }

    /// The addresses announced by lines whose message is `listening`: for
    /// clients, and for administration (`listener` is `admin`).
    pub fn addresses(&self) -> (Option<SocketAddr>, Option<SocketAddr>) {
        let (mut client, mut admin) = (None, None);
        for record in self.records() {
            if field(&record, "message") != Some("listening") {
                continue;
            }
            let Some(addr) = field(&record, "address").and_then(|text| text.parse().ok()) else {
                continue;
            };
            match field(&record, "listener") {
                Some("admin") => admin = Some(addr),
                None | Some(_) => client = Some(addr),
            }
        }
        (client, admin)
    }
}

/// A field of a log record, at the top or under `fields`.
pub fn field<'a>(record: &'a Value, name: &str) -> Option<&'a str> {
    let value = record.get(name).or_else(|| record.get("fields")?.get(name));
    value.and_then(Value::as_str)
}

fn object(line: &str) -> Option<Value> {
    let value: Value = serde_json::from_str(line).ok()?;
    value.is_object().then_some(value)
}

async fn read(stream: impl AsyncRead + Unpin, lines: Arc<watch::Sender<Vec<String>>>) {
    let mut reader = BufReader::new(stream).lines();
    while let Ok(Some(line)) = reader.next_line().await {
        lines.send_modify(|lines| lines.push(line));
    }
}
