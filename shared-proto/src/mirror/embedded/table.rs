//! The embedded store's state in memory, and what a batch of commits makes of
//! it. Pure: the writer persists a batch before the table takes it in, so that
//! nobody reads what may yet be lost.

use std::collections::BTreeMap;

use crate::clock::Millis;
use crate::mirror::commit::{Change, Commit, CommitError, Refusal};
use crate::mirror::key::{Keyspace, MAX_KEY_BYTES, Spelled};
use crate::mirror::log::Logged;
use crate::mirror::record::{MAX_RECORD_BYTES, Record, Revision, Unreadable, Why};

/// Every record, by its spelled key.
#[derive(Debug)]
pub(super) struct Table {
    keys: Keyspace,
    slots: BTreeMap<String, Slot>,
    /// The newest revision given, over all keys.
    revision: u64,
    /// Bytes of all keys and stored records.
    bytes: usize,
    max_bytes: usize,
}

#[derive(Debug)]
struct Slot {
    what: Result<Record, Unreadable>,
    /// Of key and stored form.
    bytes: usize,
}

/// Commits that were judged one after the other but are not durable yet.
#[derive(Debug)]
pub(super) struct Batch {
    staged: BTreeMap<String, Staged>,
    log: Vec<Logged>,
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
        self.bytes = 0;
        self.revision = self.revision.max(revision);
        for (key, stored) in rows {
            let what = match self.keys.parse(&key) {
                Spelled::Elsewhere => continue,
                Spelled::Malformed => Err(Why::Corrupt("not a key of this program".into())),
                Spelled::Key(parsed) => Record::from_stored(&parsed, &stored),
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
            self.slots.insert(key, Slot { what, bytes });
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

    /// Everything durable, in the order of the spelled keys.
    pub(super) fn all(&self) -> impl Iterator<Item = Result<&Record, &Unreadable>> {
        self.slots.values().map(|slot| slot.what.as_ref())
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

    /// Judges `commit` on top of what the batch did so far and, where it may
    /// be done, adds it.
    pub(super) fn stage(
        &self,
        batch: &mut Batch,
        commit: Commit,
        now: Millis,
    ) -> Result<Revision, CommitError> {
        let spelled = self.keys.spell(&commit.key);
        if spelled.len() > MAX_KEY_BYTES {
            return Err(Refusal::KeyTooLong {
                bytes: spelled.len(),
                limit: MAX_KEY_BYTES,
            }
            .into());
        }
        let present = match batch.staged.get(&spelled) {
            Some(Staged::Put { slot, .. }) => Some(slot),
            Some(Staged::Deleted) => None,
            None => self.slots.get(&spelled),
        };
        commit.decide(present.map(|slot| slot.what.as_ref()))?;
        let freed = present.map_or(0, |slot| slot.bytes);
        let revision = Revision::new(batch.revision.saturating_add(1));
        let kept = batch.bytes.saturating_sub(freed);
        let (staged, logged) = match commit.change {
            Change::Delete => (
                Staged::Deleted,
                Logged::Deleted {
                    key: commit.key,
                    revision,
                    at: now,
                },
            ),
            Change::Put { body, expires_at } => {
                let record = Record {
                    key: commit.key,
                    version: commit.version,
                    revision,
                    written_at: now,
                    expires_at,
                    body,
                };
                let stored = self.admit(&record, kept, &spelled)?;
                let bytes = spelled.len().saturating_add(stored.len());
                let logged = Logged::Put(record.clone());
                let what = Ok(record);
                let slot = Slot { what, bytes };
                (Staged::Put { slot, stored }, logged)
            }
        };
        let added = match &staged {
            Staged::Put { slot, .. } => slot.bytes,
            Staged::Deleted => 0,
        };
        batch.bytes = kept.saturating_add(added);
        batch.revision = revision.number();
        batch.staged.insert(spelled, staged);
        batch.log.push(logged);
        Ok(revision)
    }

    /// The record's stored form, if there is room for it beside `kept` bytes.
    fn admit(&self, record: &Record, kept: usize, spelled: &str) -> Result<Vec<u8>, CommitError> {
        let too_large = |bytes| CommitError::TooLarge {
            bytes,
            limit: MAX_RECORD_BYTES,
        };
        if record.body.len() > MAX_RECORD_BYTES {
            return Err(too_large(record.body.len()));
        }
        // Writing to memory fails for no record; were it to, nothing was changed.
        let stored = record
            .to_stored()
            .map_err(|_| too_large(record.body.len()))?;
        if stored.len() > MAX_RECORD_BYTES {
            return Err(too_large(stored.len()));
        }
        let total = kept
            .saturating_add(spelled.len())
            .saturating_add(stored.len());
        if total > self.max_bytes {
            return Err(Refusal::Full {
                limit: self.max_bytes,
            }
            .into());
        }
        Ok(stored)
    }

    /// Takes in a batch that is durable now; the log of its commits, in order.
    pub(super) fn absorb(&mut self, batch: Batch) -> Vec<Logged> {
        self.revision = batch.revision;
        self.bytes = batch.bytes;
        for (key, staged) in batch.staged {
            match staged {
                Staged::Put { slot, .. } => self.slots.insert(key, slot),
                Staged::Deleted => self.slots.remove(&key),
            };
        }
        batch.log
    }
}

impl Batch {
    /// Whether nothing would change.
    pub(super) fn is_empty(&self) -> bool {
        self.log.is_empty()
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
