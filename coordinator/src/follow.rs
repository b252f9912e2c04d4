//! Keeps the agenda by snapshot and log, whoever leads: so a standby knows what
//! to do from the first moment.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use shared_proto::mirror::Mirror;
use shared_proto::mirror::key::{Key, Keyspace, Spelled};
use shared_proto::mirror::log::{LogEntry, Logged, Position, TailError};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::agenda::Agenda;
use crate::duty::Addresses;
use crate::pause::{Backoff, jittered};
use crate::pen::late;

/// A snapshot that takes longer is begun again.
const SNAPSHOT_DEADLINE: Duration = Duration::from_secs(30);
/// A tail that does not begin within this time is tried again.
const TAIL_DEADLINE: Duration = Duration::from_secs(2);
/// Waits between tries while the store is away.
const RETRY: Backoff = Backoff::between(Duration::from_millis(100), Duration::from_secs(2));

/// Reads the log for ever.
pub(crate) struct Follower<'a> {
    pub(crate) mirror: &'a dyn Mirror,
    pub(crate) keys: Keyspace,
    pub(crate) agenda: Rc<RefCell<Agenda>>,
    pub(crate) addresses: Rc<RefCell<Addresses>>,
    /// Told when a leader gives its turn back.
    pub(crate) vacant: &'a Notify,
}

impl Follower<'_> {
    pub(crate) async fn run(&self) {
        let mut at = None;
        let mut failures = 0;
        loop {
            match self.follow(&mut at, &mut failures).await {
                TailError::Gap | TailError::Rewound => at = None,
                TailError::Unreachable(error) => {
                    tracing::debug!(%error, "the change log can't be read; it is tried again");
                    tokio::time::sleep(jittered(RETRY.after(failures))).await;
                    failures = failures.saturating_add(1);
                }
            }
        }
    }

    /// Reads on until something is the matter.
    async fn follow(&self, at: &mut Option<Position>, failures: &mut u32) -> TailError {
        let from = match *at {
            Some(position) => position,
            None => match self.read_all().await {
                Ok(position) => position,
                Err(error) => return error,
            },
        };
        *at = Some(from);
        let tail = timeout(TAIL_DEADLINE, self.mirror.tail(from)).await;
        let mut tail = match tail.unwrap_or_else(|_| Err(late().into())) {
            Ok(tail) => tail,
            Err(error) => return error,
        };
        *failures = 0;
        loop {
            match tail.next().await {
                Ok(entry) => {
                    *at = Some(entry.position);
                    self.entry(&entry);
                }
                Err(error) => return error,
            }
        }
    }

    async fn read_all(&self) -> Result<Position, TailError> {
        let snapshot = timeout(SNAPSHOT_DEADLINE, self.mirror.snapshot()).await;
        let snapshot = snapshot.unwrap_or_else(|_| Err(late()))?;
        self.agenda.borrow_mut().replace(&snapshot);
        self.addresses.borrow_mut().replace(&snapshot);
        Ok(snapshot.position)
    }

    fn entry(&self, entry: &LogEntry) {
        let mut agenda = self.agenda.borrow_mut();
        let mut addresses = self.addresses.borrow_mut();
        match &entry.change {
            Logged::Put(record) => {
                agenda.stored(record);
                addresses.stored(record);
                if record.key == Key::Leader && record.is_expired(record.written_at) {
                    self.vacant.notify_one();
                }
            }
            Logged::Deleted { key, .. } => {
                agenda.remove(key);
                addresses.remove(key);
                if *key == Key::Leader {
                    self.vacant.notify_one();
                }
            }
            Logged::Unreadable(unreadable) => {
                if let Spelled::Key(key) = self.keys.parse(&unreadable.key) {
                    agenda.remove(&key);
                    addresses.remove(&key);
                }
            }
        }
    }
}
