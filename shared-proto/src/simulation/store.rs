//! A store in a value: what [`Mirror`](crate::mirror::Mirror) promises, without
//! waiting. It can be copied, compared and taken back to an earlier state.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::clock::Millis;
use crate::id::ConnectionId;
use crate::mirror::commit::{Change, CommitError, Committed, Guard, TransactError, Transaction};
use crate::mirror::hold::{Holder, Pool, Take, Taken};
use crate::mirror::key::Key;
use crate::mirror::log::Position;
use crate::mirror::record::{Body, Record, Revision};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Kept {
    pub(crate) revision: u64,
    pub(crate) written_at: Millis,
    pub(crate) expires_at: Option<Millis>,
    version: u16,
    body: Bytes,
}

impl Kept {
    pub(crate) fn of(record: &Record) -> Self {
        Self {
            revision: record.revision.number(),
            written_at: record.written_at,
            expires_at: record.expires_at,
            version: record.version,
            body: record.body.clone(),
        }
    }

    pub(crate) fn record(&self, key: &Key) -> Record {
        Record {
            key: key.clone(),
            version: self.version,
            revision: Revision::new(self.revision),
            written_at: self.written_at,
            expires_at: self.expires_at,
            body: self.body.clone(),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Store {
    pub(crate) now: Millis,
    records: BTreeMap<Key, Kept>,
    holds: BTreeMap<(ConnectionId, Holder), Millis>,
}

impl Store {
    pub(crate) fn at(now: Millis) -> Self {
        Self {
            now,
            ..Self::default()
        }
    }

    pub(crate) fn load(&self, key: &Key) -> Option<Record> {
        self.records.get(key).map(|kept| kept.record(key))
    }

    pub(crate) fn records(&self) -> impl Iterator<Item = Record> {
        self.records.iter().map(|(key, kept)| kept.record(key))
    }

    pub(crate) fn decoded<B: Body>(&self, key: &Key) -> Option<B> {
        self.load(key).map(|record| record.decode().unwrap())
    }

    /// Whatever `key` held, it holds this body now.
    pub(crate) fn force(&mut self, key: &Key, version: u16, body: Bytes) {
        let kept = Kept {
            revision: self.next_revision(key),
            written_at: self.now,
            expires_at: None,
            version,
            body,
        };
        self.records.insert(key.clone(), kept);
    }

    /// Forgets the records that have expired, as a store may.
    pub(crate) fn drop_expired(&mut self) {
        let now = self.now;
        self.records
            .retain(|_, kept| kept.expires_at.is_none_or(|at| at > now));
    }

    fn next_revision(&self, key: &Key) -> u64 {
        let last = self.records.get(key).map_or(0, |kept| kept.revision);
        (last + 1).max(self.now.as_epoch_ms() * 1000)
    }

    fn holds_guard(&self, guard: &Guard) -> bool {
        let stored = self.load(&guard.key);
        stored.is_some_and(|r| r.revision == guard.revision && !r.is_expired(self.now))
    }

    pub(crate) fn transact(
        &mut self,
        transaction: &Transaction,
    ) -> Result<Vec<Committed>, TransactError> {
        let keys = || {
            let guards = transaction.guards.iter().map(|guard| &guard.key);
            guards.chain(transaction.commits.iter().map(|commit| &commit.key))
        };
        let conflict = || TransactError::Conflict {
            newest: keys().map(|key| (key.clone(), self.load(key))).collect(),
            at: self.now,
        };
        if !transaction
            .guards
            .iter()
            .all(|guard| self.holds_guard(guard))
        {
            return Err(conflict());
        }
        for commit in &transaction.commits {
            match commit.decide(self.load(&commit.key).as_ref().map(Ok)) {
                Ok(()) => {}
                Err(CommitError::Refused(refusal)) => return Err(refusal.into()),
                Err(_) => return Err(conflict()),
            }
        }
        let mut committed = Vec::new();
        for commit in &transaction.commits {
            let revision = self.next_revision(&commit.key);
            match &commit.change {
                Change::Delete => {
                    self.records.remove(&commit.key);
                }
                Change::Put { body, expires_at } => {
                    let kept = Kept {
                        revision,
                        written_at: self.now,
                        expires_at: *expires_at,
                        version: commit.version,
                        body: body.clone(),
                    };
                    self.records.insert(commit.key.clone(), kept);
                }
            }
            committed.push(Committed {
                revision: Revision::new(revision),
                position: Position::new(0, revision),
            });
        }
        Ok(committed)
    }

    pub(crate) fn take(&mut self, take: &Take) -> Taken {
        if let Some(guard) = &take.guard
            && !self.holds_guard(guard)
        {
            return Taken::Fenced {
                newest: self.load(&guard.key),
                at: self.now,
            };
        }
        let until = self.now.plus(take.ttl_ms);
        let place = (leased(&take.pool), take.holder.clone());
        self.holds.insert(place, until);
        Taken::Held { until }
    }

    /// Whether it was still held.
    pub(crate) fn keep(&mut self, connection: &ConnectionId, holder: &Holder, ttl_ms: u64) -> bool {
        let now = self.now;
        let place = (connection.clone(), holder.clone());
        match self.holds.get_mut(&place) {
            Some(until) if *until > now => {
                *until = now.plus(ttl_ms);
                true
            }
            Some(_) | None => false,
        }
    }

    pub(crate) fn give_back(&mut self, connection: &ConnectionId, holder: &Holder) {
        self.holds.remove(&(connection.clone(), holder.clone()));
    }

    pub(crate) fn forget_lapsed(&mut self) {
        let now = self.now;
        self.holds.retain(|_, until| *until > now);
    }

    pub(crate) fn is_held(&self, connection: &ConnectionId, holder: &Holder) -> bool {
        let until = self.holds.get(&(connection.clone(), holder.clone()));
        until.is_some_and(|until| *until > self.now)
    }

    pub(crate) fn holders(&self, connection: &ConnectionId) -> usize {
        let live = |((of, _), until): &(&(ConnectionId, Holder), &Millis)| {
            of == connection && **until > self.now
        };
        self.holds.iter().filter(live).count()
    }
}

fn leased(pool: &Pool) -> ConnectionId {
    match pool {
        Pool::Leased(connection) => connection.clone(),
        Pool::Slots(_) | Pool::Nodes | Pool::Uses(_) => panic!("not a pool of leases: {pool:?}"),
    }
}
