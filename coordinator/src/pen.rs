//! How the leader writes: each write carries the fence of its epoch, ends
//! within a deadline, and none begins after the end of its turn.

use std::time::Duration;

use shared_proto::clock::Millis;
use shared_proto::leader::Election;
use shared_proto::mirror::commit::{Guard, TransactError, Transaction};
use shared_proto::mirror::key::Key;
use shared_proto::mirror::record::Record;
use shared_proto::mirror::{Mirror, Unreachable};
use tokio::time::timeout;

use crate::metrics::Metrics;

/// A store call that takes longer counts as failed.
pub(crate) const STORE_DEADLINE: Duration = Duration::from_secs(1);

/// By what right duties are done.
#[derive(Debug)]
pub(crate) enum Authority {
    /// The store belongs to this process.
    Sole,
    /// As long as the election gives it.
    Elected(Box<Election>),
}

/// Why a turn ends early.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Stop {
    /// Its time is over; what is left is done next time.
    #[error("the turn is over")]
    Over,
    /// This process does not lead any more, or can't say.
    #[error("the fence does not hold")]
    Fenced,
    /// The store did not answer.
    #[error(transparent)]
    Away(#[from] Unreachable),
}

/// What became of a write that the fence let through.
#[derive(Debug)]
pub(crate) enum Wrote {
    Made,
    /// Records are not as expected: these are stored, as of that time.
    Conflict(Vec<(Key, Option<Record>)>, Millis),
    /// It will never be done.
    Refused(String),
}

/// Writes for the length of one turn.
pub(crate) struct Pen<'a> {
    pub(crate) mirror: &'a dyn Mirror,
    pub(crate) metrics: &'a Metrics,
    pub(crate) authority: &'a mut Authority,
    pub(crate) until: Millis,
}

impl Pen<'_> {
    /// The store's time, while there is some left of the turn.
    pub(crate) fn now(&self) -> Result<Millis, Stop> {
        let now = self.mirror.now();
        if now < self.until {
            Ok(now)
        } else {
            Err(Stop::Over)
        }
    }

    /// Makes the transaction under the fence.
    pub(crate) async fn write(&mut self, mut write: Transaction) -> Result<Wrote, Stop> {
        let fence = self.fence()?;
        write.guards.extend(fence.clone());
        let made = timeout(STORE_DEADLINE, self.mirror.transact(write)).await;
        match made.unwrap_or_else(|_| Err(late().into())) {
            Ok(_) => {
                self.metrics.writes.inc();
                Ok(Wrote::Made)
            }
            Err(TransactError::Conflict { newest, at }) => {
                self.let_through(fence.as_ref(), &newest, at)?;
                Ok(Wrote::Conflict(newest, at))
            }
            Err(TransactError::Unreachable(why)) => Err(why.into()),
            Err(
                why @ (TransactError::Refused(_)
                | TransactError::TooLarge { .. }
                | TransactError::Replicas { .. }),
            ) => Ok(Wrote::Refused(why.to_string())),
        }
    }

    /// Takes entries of that age from the log; how many.
    pub(crate) async fn trim(&mut self, age_ms: u64) -> Result<u64, Stop> {
        let fence = self.fence()?;
        let trimmed = timeout(STORE_DEADLINE, self.mirror.trim(age_ms, fence.clone())).await;
        match trimmed.unwrap_or_else(|_| Err(late().into())) {
            Ok(count) => Ok(count),
            Err(TransactError::Conflict { newest, at }) => {
                self.let_through(fence.as_ref(), &newest, at)?;
                Ok(0)
            }
            Err(TransactError::Unreachable(why)) => Err(why.into()),
            Err(
                why @ (TransactError::Refused(_)
                | TransactError::TooLarge { .. }
                | TransactError::Replicas { .. }),
            ) => Err(Unreachable(why.to_string().into()).into()),
        }
    }

    fn fence(&self) -> Result<Option<Guard>, Stop> {
        let now = self.now()?;
        match &*self.authority {
            Authority::Sole => Ok(None),
            Authority::Elected(election) => match election.fence(now) {
                Some(guard) => Ok(Some(guard)),
                None => Err(Stop::Fenced),
            },
        }
    }

    /// Whether it was not the fence that refused. If it was, the election
    /// hears what the leader's record is now.
    fn let_through(
        &mut self,
        fence: Option<&Guard>,
        newest: &[(Key, Option<Record>)],
        at: Millis,
    ) -> Result<(), Stop> {
        let (Some(fence), Authority::Elected(election)) = (fence, &mut *self.authority) else {
            return Ok(());
        };
        let stored = newest.iter().find(|(key, _)| *key == fence.key);
        let stored = stored.and_then(|(_, record)| record.as_ref());
        let holds = |record: &Record| record.revision == fence.revision && !record.is_expired(at);
        if stored.is_some_and(holds) {
            return Ok(());
        }
        self.metrics.fenced.inc();
        tracing::warn!(
            epoch = election.epoch(),
            "a write was refused by the fence: this is not the leader any more"
        );
        election.refused(newest, at.max(self.mirror.now()));
        Err(Stop::Fenced)
    }
}

pub(crate) fn late() -> Unreachable {
    Unreachable("no answer in time".into())
}
