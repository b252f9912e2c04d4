//! The embedded store's state in memory, and what a batch of commits makes of
//! it. Pure: the writer persists a batch before the table takes it in, so that
//! nobody reads what may yet be lost.

use std::collections::{BTreeMap, BTreeSet};

use crate::clock::Millis;
use crate::mirror::commit::{Change, Commit, CommitError, Refusal, TransactError, Transaction};
use crate::mirror::key::{Keyspace, MAX_KEY_BYTES, Spelled};
use crate::mirror::log::Logged;
use crate::mirror::record::{MAX_RECORD_BYTES, Record, Revision, Unreadable, Why};

/// How long a quiet record stays after it expired, in ms: longer than anybody
/// who judges by a time of his own is behind.
pub(super) const KEPT_EXPIRED_MS: u64 = 60_000;

/// Every record, by its spelled key.
#[derive(Debug)]
pub(super) struct Table {
    keys: Keyspace,
    slots: BTreeMap<String, Slot>,
    /// When quiet records expire, and their spelled keys.
    quiet_ends: BTreeSet<(Millis, String)>,
    /// The newest revision given, over all keys.
    revision: u64,
    /// Bytes of all keys and stored records.
    bytes: usize,
    max_bytes: usize,
}

#[derive(Debug)]
struct Slot {
    what: Result<Record, Unreadable>,
    /// Whether it is part of snapshots.
    logged: bool,
    /// Of key and stored form.
    bytes: usize,
}

impl Slot {
    /// When it expires, if it is a quiet record that does.
    fn quiet_end(&self) -> Option<Millis> {
        let record = self.what.as_ref().ok().filter(|_| !self.logged)?;
        record.expires_at
    }
}

/// Transactions that were judged one after the other but are not durable yet.
#[derive(Debug)]
pub(super) struct Batch {
    staged: BTreeMap<String, Staged>,
    /// For each commit what the log is told; `None` of quiet records.
    log: Vec<Option<Logged>>,
    revision: u64,
    bytes: usize,
}

#[derive(Debug)]
enum Staged {
    Put { slot: Slot, stored: Vec<u8> },
    Deleted,
}

impl Table {
    /// The state that `rows` of spelled keys and stored records hold. Rows of
    /// other prefixes are not seen.
    pub(super) fn new(
        keys: Keyspace,
        max_bytes: usize,
        revision: u64,
        rows: Vec<(String, Vec<u8>)>,
    ) -> Self {
        let mut table = Self {
            keys,
            slots: BTreeMap::new(),
            quiet_ends: BTreeSet::new(),
            revision,
            bytes: 0,
            max_bytes,
        };
        table.replace(revision, rows);
        table
    }

    /// Forgets everything for what `rows` hold.
    pub(super) fn replace(&mut self, revision: u64, rows: Vec<(String, Vec<u8>)>) {
        self.slots.clear();
        self.quiet_ends.clear();
        self.bytes = 0;
        self.revision = self.revision.max(revision);
        for (key, stored) in rows {
            let (what, logged) = match self.keys.parse(&key) {
                Spelled::Elsewhere => continue,
                Spelled::Malformed => {
                    let why = Why::Corrupt("not a key of this program".into());
                    (Err(why), true)
                }
                Spelled::Key(parsed) => {
                    let logged = parsed.is_logged();
                    (Record::from_stored(&parsed, &stored), logged)
                }
            };
            let what = what.map_err(|why| Unreadable {
                key: key.as_str().into(),
                why,
            });
            if let Ok(record) = &what {
                self.revision = self.revision.max(record.revision.number());
            }
            let bytes = key.len().saturating_add(stored.len());
            self.bytes = self.bytes.saturating_add(bytes);
            let slot = Slot {
                what,
                logged,
                bytes,
            };
            self.insert(key, slot);
        }
    }

    /// How `key` is spelled here.
    pub(super) const fn keys(&self) -> &Keyspace {
        &self.keys
    }

    /// What is durable under a spelled key.
    pub(super) fn get(&self, spelled: &str) -> Option<Result<&Record, &Unreadable>> {
        self.slots.get(spelled).map(|slot| slot.what.as_ref())
    }

    /// Everything durable but quiet records, in the order of the spelled keys.
    pub(super) fn all(&self) -> impl Iterator<Item = Result<&Record, &Unreadable>> {
        let logged = self.slots.values().filter(|slot| slot.logged);
        logged.map(|slot| slot.what.as_ref())
    }

    /// An empty batch on top of the present state.
    pub(super) const fn batch(&self) -> Batch {
        Batch {
            staged: BTreeMap::new(),
            log: Vec::new(),
            revision: self.revision,
            bytes: self.bytes,
        }
    }

    /// Judges `transaction` on top of what the batch did so far and, where it
    /// may be done, adds it; or else the batch stays as it is. The revision for
    /// each commit.
    pub(super) fn stage(
        &self,
        batch: &mut Batch,
        transaction: Transaction,
        now: Millis,
    ) -> Result<Vec<Revision>, TransactError> {
        transaction.check()?;
        self.judge(batch, &transaction, now)?;
        let mut draft = Batch {
            staged: BTreeMap::new(),
            log: Vec::new(),
            revision: batch.revision,
            bytes: batch.bytes,
        };
        let mut revisions = Vec::with_capacity(transaction.commits.len());
        for commit in transaction.commits {
            revisions.push(self.draft(batch, &mut draft, commit, now)?);
        }
        if draft.bytes > self.max_bytes.max(batch.bytes) {
            return Err(Refusal::Full {
                limit: self.max_bytes,
            }
            .into());
        }
        batch.staged.append(&mut draft.staged);
        batch.log.append(&mut draft.log);
        batch.revision = draft.revision;
        batch.bytes = draft.bytes;
        Ok(revisions)
    }

    /// Whether all guards hold and all records are as expected.
    fn judge(
        &self,
        batch: &Batch,
        transaction: &Transaction,
        now: Millis,
    ) -> Result<(), TransactError> {
        if transaction.replicas > 0 {
            return Err(Refusal::NoReplicas {
                wanted: transaction.replicas,
            }
            .into());
        }
        let mut found = Vec::new();
        for key in transaction.keys() {
            let spelled = self.keys.spell(key);
            if spelled.len() > MAX_KEY_BYTES {
                return Err(Refusal::KeyTooLong {
                    bytes: spelled.len(),
                    limit: MAX_KEY_BYTES,
                }
                .into());
            }
            let slot = self.present(batch, &spelled);
            found.push((key, slot.map(|slot| slot.what.as_ref())));
        }
        let mut guards = transaction.guards.iter().zip(&found);
        // One that can't be read holds nothing.
        let fenced = !guards.all(|(guard, (_, stored))| {
            let record = stored.and_then(Result::ok);
            guard.holds(record, now)
        });
        if !fenced {
            let commits = found.iter().skip(transaction.guards.len());
            let mut judged = transaction.commits.iter().zip(commits);
            let first = judged.try_for_each(|(commit, (_, stored))| commit.decide(*stored));
            match first {
                Ok(()) => return Ok(()),
                Err(CommitError::Refused(refusal)) => return Err(refusal.into()),
                Err(CommitError::TooLarge { bytes, limit }) => {
                    return Err(TransactError::TooLarge { bytes, limit });
                }
                Err(CommitError::Unreachable(why)) => return Err(why.into()),
                Err(CommitError::Conflict { .. }) => {}
            }
        }
        let newest = found.into_iter().map(|(key, stored)| {
            let record = stored.and_then(Result::ok);
            (key.clone(), record.cloned())
        });
        Err(TransactError::Conflict {
            newest: newest.collect(),
            at: now,
        })
    }

    /// What is under a spelled key after what the batch did so far.
    fn present<'a>(&'a self, batch: &'a Batch, spelled: &str) -> Option<&'a Slot> {
        match batch.staged.get(spelled) {
            Some(Staged::Put { slot, .. }) => Some(slot),
            Some(Staged::Deleted) => None,
            None => self.slots.get(spelled),
        }
    }

    /// Adds a commit that was judged to the draft of its transaction.
    fn draft(
        &self,
        batch: &Batch,
        draft: &mut Batch,
        commit: Commit,
        now: Millis,
    ) -> Result<Revision, TransactError> {
        let spelled = self.keys.spell(&commit.key);
        let freed = self.present(batch, &spelled).map_or(0, |slot| slot.bytes);
        let revision = Revision::new(draft.revision.saturating_add(1));
        let logged = commit.key.is_logged();
        let (staged, told, added) = match commit.change {
            Change::Delete => {
                let told = Logged::Deleted {
                    key: commit.key,
                    revision,
                    at: now,
                };
                (Staged::Deleted, told, 0)
            }
            Change::Put { body, expires_at } => {
                let record = Record {
                    key: commit.key,
                    version: commit.version,
                    revision,
                    written_at: now,
                    expires_at,
                    body,
                };
                let stored = stored_form(&record)?;
                let bytes = spelled.len().saturating_add(stored.len());
                let told = Logged::Put(record.clone());
                let slot = Slot {
                    what: Ok(record),
                    logged,
                    bytes,
                };
                (Staged::Put { slot, stored }, told, bytes)
            }
        };
        draft.bytes = draft.bytes.saturating_sub(freed).saturating_add(added);
        draft.revision = revision.number();
        draft.staged.insert(spelled, staged);
        draft.log.push(logged.then_some(told));
        Ok(revision)
    }

    /// Adds to the batch the removal of at most `most` quiet records that
    /// expired a good while ago.
    pub(super) fn sweep(&self, batch: &mut Batch, now: Millis, most: usize) {
        let due = self
            .quiet_ends
            .iter()
            .take_while(|(end, _)| end.plus(KEPT_EXPIRED_MS) <= now)
            .filter(|(_, key)| !batch.staged.contains_key(key))
            .take(most);
        let due: Vec<_> = due.map(|(_, key)| key.clone()).collect();
        for key in due {
            let freed = self.slots.get(&key).map_or(0, |slot| slot.bytes);
            batch.bytes = batch.bytes.saturating_sub(freed);
            batch.staged.insert(key, Staged::Deleted);
        }
    }

    /// Takes in a batch that is durable now; for each of its commits, in order,
    /// what the log is told.
    pub(super) fn absorb(&mut self, batch: Batch) -> Vec<Option<Logged>> {
        self.revision = batch.revision;
        self.bytes = batch.bytes;
        for (key, staged) in batch.staged {
            match staged {
                Staged::Put { slot, .. } => self.insert(key, slot),
                Staged::Deleted => self.remove(&key),
            }
        }
        batch.log
    }

    fn insert(&mut self, key: String, slot: Slot) {
        self.remove(&key);
        if let Some(end) = slot.quiet_end() {
            self.quiet_ends.insert((end, key.clone()));
        }
        self.slots.insert(key, slot);
    }

    fn remove(&mut self, key: &str) {
        let removed = self.slots.remove(key);
        if let Some(end) = removed.and_then(|slot| slot.quiet_end()) {
            self.quiet_ends.remove(&(end, key.to_owned()));
        }
    }
}

/// The record's stored form, if it is not too large.
fn stored_form(record: &Record) -> Result<Vec<u8>, TransactError> {
    let too_large = |bytes| TransactError::TooLarge {
        bytes,
        limit: MAX_RECORD_BYTES,
    };
    // Writing to memory fails for no record; were it to, nothing was changed.
    let stored = record
        .to_stored()
        .map_err(|_| too_large(record.body.len()))?;
    if stored.len() > MAX_RECORD_BYTES {
        return Err(too_large(stored.len()));
    }
    Ok(stored)
}

impl Batch {
    /// Whether nothing would change.
    pub(super) fn is_empty(&self) -> bool {
        self.staged.is_empty()
    }

    /// The newest revision given.
    pub(super) const fn revision(&self) -> u64 {
        self.revision
    }

    /// What has to be stored in the end, by spelled key; `None` is removal.
    pub(super) fn rows(&self) -> impl Iterator<Item = (&str, Option<&[u8]>)> {
        self.staged.iter().map(|(key, staged)| match staged {
            Staged::Put { stored, .. } => (key.as_str(), Some(stored.as_slice())),
            Staged::Deleted => (key.as_str(), None),
        })
    }
}

#[cfg(test)]
mod tests;
