//! Reading the log on, over a connection of its own that waits in the server.
//!
//! Every entry names the one before it. A reader that finds another than the
//! last it read has missed something; whether because the log was trimmed or
//! because the store went back is told by what the log still has.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{Cmd, Value, cmd};
use futures_util::stream;
use tokio::time::Instant;

use super::dial::Party;
use super::fault::{Cure, Fault};
use super::link::{Shared, closed};
use super::reply::{Answer, Entry, last_generated};
use super::snapshot::{ENTRIES, ORIGIN};
use crate::mirror::Unreachable;
use crate::mirror::log::{LogEntry, Position, Tail, TailError};

/// How long a read waits in the server; then the reader looks whether the log
/// is still the one that it knows.
const BLOCK: Duration = Duration::from_secs(1);

/// A tail from `from`.
pub(super) async fn tail(shared: Arc<Shared>, from: Position) -> Result<Tail, TailError> {
    let mut cursor = Cursor::open(shared, from).await?;
    cursor.verify().await?;
    let entries = stream::try_unfold(cursor, |mut cursor| async move {
        let entry = cursor.next().await?;
        Ok(Some((entry, cursor)))
    });
    Ok(Tail::new(Box::pin(entries)))
}

struct Cursor {
    shared: Arc<Shared>,
    connection: MultiplexedConnection,
    generation: u64,
    at: Position,
    ready: VecDeque<Entry>,
}

impl Cursor {
    async fn open(shared: Arc<Shared>, at: Position) -> Result<Self, Unreachable> {
        let link = shared.link(shared.end(Instant::now())).await?;
        let dial = Arc::clone(&shared.dial);
        let (host, generation) = (link.host.clone(), link.generation);
        let patience = BLOCK.saturating_add(shared.options.deadline);
        // Beside the others, so that the connection outlives this call's runtime
        // and ends with the store.
        let opened = shared
            .runtime
            .spawn(async move { dial.open(&host, Party::Server, patience).await });
        let opened = opened.await.map_err(|_| closed())?;
        let connection = opened.map_err(|fault| doubtful(&shared, fault))?;
        Ok(Self {
            shared,
            connection,
            generation,
            at,
            ready: VecDeque::new(),
        })
    }

    async fn next(&mut self) -> Result<LogEntry, TailError> {
        loop {
            if let Some(entry) = self.ready.pop_front() {
                if entry.before.is_some_and(|before| before != self.at) {
                    // Trimmed while it was on its way, or another log.
                    self.verify().await?;
                    return Err(TailError::Gap);
                }
                self.at = entry.position;
                return Ok(LogEntry {
                    position: entry.position,
                    change: entry.change,
                });
            }
            let mut read = cmd("XREAD");
            read.arg("COUNT").arg(ENTRIES);
            read.arg("BLOCK").arg(BLOCK.as_millis().to_string());
            read.arg("STREAMS").arg(&self.shared.log);
            read.arg(self.at.to_string());
            let found = self.ask(&read).await?;
            self.shared.read_under.send_replace(self.generation);
            self.ready = self.entries(found)?;
            if self.ready.is_empty() {
                self.verify().await?;
            }
        }
    }

    /// The entries of the one stream that was read.
    fn entries(&self, found: Value) -> Result<VecDeque<Entry>, Unreachable> {
        let mut found = Answer::of(found)?;
        let mut entries = VecDeque::new();
        while let Some(stream) = found.next() {
            let mut stream = Answer::of(stream)?;
            stream.bytes()?; // its name
            let mut listed = stream.list()?;
            while let Some(entry) = listed.next() {
                entries.push_back(Entry::of(&self.shared.keys, entry)?);
            }
        }
        Ok(entries)
    }

    /// Whether the log still has the place that was read up to.
    async fn verify(&mut self) -> Result<(), TailError> {
        let at = self.at;
        if at == ORIGIN {
            let whole = match self.edge("XRANGE", "-", "+").await? {
                Some(first) => first.before == Some(ORIGIN),
                None => self.is_empty_since(ORIGIN).await?,
            };
            return if whole { Ok(()) } else { Err(self.lost()) };
        }
        let place = at.to_string();
        if self.edge("XRANGE", &place, &place).await?.is_some() {
            return Ok(());
        }
        let last = self.edge("XREVRANGE", "+", "-").await?;
        let first = self.edge("XRANGE", "-", "+").await?;
        match (first, last) {
            (Some(first), _) if first.before == Some(at) => Ok(()),
            // A whole log, up to its beginning, without it.
            (Some(first), _) if first.before == Some(ORIGIN) => Err(TailError::Rewound),
            (Some(first), Some(last)) if at < first.position && at < last.position => {
                Err(self.lost())
            }
            (None, None) if self.is_empty_since(at).await? => Ok(()),
            _ => Err(TailError::Rewound),
        }
    }

    /// Whether nothing came after `at` in a log that has just been found empty,
    /// but what is still there.
    async fn is_empty_since(&mut self, at: Position) -> Result<bool, Unreachable> {
        if self.emptied_at().await? == at {
            return Ok(true);
        }
        // It may have been given its next entry between the two questions.
        let first = self.edge("XRANGE", "-", "+").await?;
        Ok(first.is_some_and(|first| first.before == Some(at)))
    }

    /// The last id that an empty log ever gave.
    async fn emptied_at(&mut self) -> Result<Position, Unreachable> {
        let log = self.shared.log.clone();
        if self.ask(cmd("EXISTS").arg(&log)).await? != Value::Int(1) {
            return Ok(ORIGIN);
        }
        let info = self.ask(cmd("XINFO").arg("STREAM").arg(&log)).await?;
        Ok(last_generated(info)?.unwrap_or(ORIGIN))
    }

    /// The place is from before all that the log has. On the server that was
    /// read from before it was trimmed; on another nobody can say whether it
    /// ever had it.
    fn lost(&self) -> TailError {
        let under = *self.shared.read_under.borrow();
        if under == 0 || under == self.generation {
            TailError::Gap
        } else {
            TailError::Rewound
        }
    }

    /// The first entry of a range.
    async fn edge(
        &mut self,
        command: &str,
        from: &str,
        to: &str,
    ) -> Result<Option<Entry>, Unreachable> {
        let mut command = cmd(command);
        command.arg(&self.shared.log).arg(from).arg(to);
        command.arg("COUNT").arg(1);
        let mut found = Answer::of(self.ask(&command).await?)?;
        let entry = found
            .next()
            .map(|entry| Entry::of(&self.shared.keys, entry));
        Ok(entry.transpose()?)
    }

    async fn ask(&mut self, command: &Cmd) -> Result<Value, Unreachable> {
        let shared = &self.shared;
        tokio::select! {
            () = shared.replaced(self.generation) => {
                Err(Unreachable("the connection to it was replaced".into()))
            }
            found = command.query_async(&mut self.connection) => {
                found.map_err(|error| doubtful(shared, Fault::of(&error)))
            }
        }
    }
}

/// Lets the supervisor look at once whether the server is still there.
fn doubtful(shared: &Shared, fault: Fault) -> Unreachable {
    if fault.cure == Cure::Reconnect {
        shared.doubt.notify_one();
    }
    fault.into()
}
