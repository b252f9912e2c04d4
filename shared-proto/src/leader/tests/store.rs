//! A store with one record, that can lose its last write.

use bytes::Bytes;

use super::*;
use crate::mirror::commit::Change;
use crate::mirror::log::Position;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Store {
    pub(super) now: Millis,
    pub(super) record: Option<Stored>,
    before: Option<Stored>,
    revision: u64,
}

/// `Record` in a form that can be hashed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Stored {
    version: u16,
    revision: u64,
    expires_at: Option<Millis>,
    body: Bytes,
}

impl Stored {
    fn as_record(&self) -> Record {
        Record {
            key: Key::Leader,
            version: self.version,
            revision: Revision::new(self.revision),
            written_at: T0,
            expires_at: self.expires_at,
            body: self.body.clone(),
        }
    }
}

impl Store {
    pub(super) fn new(now: Millis) -> Self {
        Self {
            now,
            record: None,
            before: None,
            revision: 0,
        }
    }

    pub(super) fn load(&self) -> Option<Record> {
        self.record.as_ref().map(Stored::as_record)
    }

    pub(super) fn leader(&self) -> Option<Leader> {
        self.load().and_then(|record| Leader::of(&record).ok())
    }

    pub(super) fn holds(&self, guard: &Guard) -> bool {
        self.record.as_ref().is_some_and(|record| {
            record.revision == guard.revision.number()
                && record.expires_at.is_none_or(|at| at > self.now)
        })
    }

    /// Visits every revision and every epoch that is known.
    pub(super) fn each_number(&mut self, visit: &mut dyn FnMut(&mut u64)) {
        visit(&mut self.revision);
        for stored in [&mut self.record, &mut self.before].into_iter().flatten() {
            visit(&mut stored.revision);
            let mut leader: Leader = stored.as_record().decode().unwrap();
            each_epoch(&mut leader, visit);
            stored.body = rmp_serde::to_vec_named(&leader).unwrap().into();
        }
    }

    /// The last write is lost. Revisions rise all the same.
    pub(super) fn rewind(&mut self) {
        self.record = self.before.take();
    }

    pub(super) fn put_raw(&mut self, body: &'static [u8], version: u16, at: Option<Millis>) {
        self.revision += 1;
        self.before = self.record.replace(Stored {
            version,
            revision: self.revision,
            expires_at: at,
            body: Bytes::from_static(body),
        });
    }

    pub(super) fn apply(&mut self, write: &Transaction) -> Result<Vec<Committed>, TransactError> {
        let [commit] = &write.commits[..] else {
            panic!("{write:?}");
        };
        let fits = match (commit.expected, &self.record) {
            (Expected::Absent, None) => true,
            (Expected::Revision(revision), Some(record)) => revision.number() == record.revision,
            (Expected::Absent | Expected::Revision(_) | Expected::Corrupt, _) => false,
        };
        if !(fits && write.guards.iter().all(|guard| self.holds(guard))) {
            return Err(TransactError::Conflict {
                newest: vec![(Key::Leader, self.load())],
                at: self.now,
            });
        }
        let Change::Put { body, expires_at } = &commit.change else {
            panic!("{write:?}");
        };
        self.revision += 1;
        self.before = self.record.replace(Stored {
            version: commit.version,
            revision: self.revision,
            expires_at: *expires_at,
            body: body.clone(),
        });
        Ok(vec![Committed {
            revision: Revision::new(self.revision),
            position: Position::new(1, self.revision),
        }])
    }
}

/// Visits the epoch of a leader, unless it is a claim's, which is not known.
pub(super) fn each_epoch(leader: &mut Leader, visit: &mut dyn FnMut(&mut u64)) {
    if leader.epoch > 0 {
        visit(&mut leader.epoch);
    }
}
