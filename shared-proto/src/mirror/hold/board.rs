//! Holds in memory: every pool's holders and queue, as one value.
//!
//! Pure: time is an argument. What has lapsed is dropped before anything else
//! is looked at, so a pool that nobody asks about any more takes no room.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::{Held, HoldError, Holder, MAX_HOLDERS, Place, Pool, Take, Taken, check_places};
use crate::clock::Millis;

/// Holders of all pools at most, the waiting included; more are refused.
pub const MAX_ON_BOARD: usize = 1_000_000;

/// Who holds and who waits, in every pool.
#[derive(Debug)]
pub struct Board {
    /// Those that somebody holds or waits in.
    rooms: BTreeMap<Pool, Room>,
    /// When each hold and each place in a queue lapses.
    ends: BTreeSet<(Millis, Pool, Holder)>,
    /// The newest turn given, over all pools.
    turn: u64,
    /// How many it notes at most.
    most: usize,
}

/// One pool.
#[derive(Debug, Default)]
struct Room {
    entries: BTreeMap<Holder, Entry>,
    /// The turns of those that wait.
    queue: BTreeSet<u64>,
}

#[derive(Debug)]
struct Entry {
    until: Millis,
    what: What,
}

#[derive(Debug)]
enum What {
    Holds { note: Bytes },
    Waits { turn: u64 },
}

impl Default for Board {
    fn default() -> Self {
        Self {
            rooms: BTreeMap::new(),
            ends: BTreeSet::new(),
            turn: 0,
            most: MAX_ON_BOARD,
        }
    }
}

impl Board {
    /// Takes a place, or one in the queue. A guard is not looked at: the caller
    /// has judged it and asks only when it holds.
    pub fn take(&mut self, take: Take, now: Millis) -> Result<Taken, HoldError> {
        take.check()?;
        self.purge(now);
        let place = Place {
            pool: take.pool,
            holder: take.holder,
        };
        let Some(ahead) = self.ahead(&place, take.limit) else {
            self.admit(&place)?;
            let until = now.plus(take.ttl_ms);
            self.put(place, until, What::Holds { note: take.note });
            return Ok(Taken::Held { until });
        };
        if let Some(patience_ms) = take.patience_ms {
            self.admit(&place)?;
            let turn = self.turn_of(&place);
            self.put(place, now.plus(patience_ms), What::Waits { turn });
        } else {
            self.remove(&place);
        }
        Ok(Taken::Full { ahead })
    }

    /// Keeps holds for `ttl_ms` from `now`; for each, whether it was held.
    pub fn keep(
        &mut self,
        places: Vec<Place>,
        ttl_ms: u64,
        now: Millis,
    ) -> Result<Vec<bool>, HoldError> {
        check_places(&places)?;
        self.purge(now);
        let keep = |place: Place| match self.entry(&place).map(|entry| &entry.what) {
            Some(What::Holds { note }) => {
                let note = note.clone();
                self.put(place, now.plus(ttl_ms), What::Holds { note });
                true
            }
            Some(What::Waits { .. }) | None => false,
        };
        Ok(places.into_iter().map(keep).collect())
    }

    /// Gives back holds and places in queues.
    pub fn give_back(&mut self, places: &[Place], now: Millis) -> Result<(), HoldError> {
        check_places(places)?;
        self.purge(now);
        for place in places {
            self.remove(place);
        }
        Ok(())
    }

    /// Who holds in `pool` at `now`, by name.
    pub fn holders(&mut self, pool: &Pool, now: Millis) -> Vec<Held> {
        self.purge(now);
        let entries = self.rooms.get(pool).map(|room| &room.entries);
        let held = entries.into_iter().flatten();
        held.filter_map(|(holder, entry)| match &entry.what {
            What::Holds { note } => Some(Held {
                holder: holder.clone(),
                until: entry.until,
                note: note.clone(),
            }),
            What::Waits { .. } => None,
        })
        .collect()
    }

    /// How many wait before `place`, if there is no room for it and them; who
    /// holds already has room.
    fn ahead(&self, place: &Place, limit: Option<u32>) -> Option<u32> {
        let limit = usize::try_from(limit?).unwrap_or(usize::MAX);
        let Some(room) = self.rooms.get(&place.pool) else {
            return (limit == 0).then_some(0);
        };
        let ahead = match room.entries.get(&place.holder).map(|entry| &entry.what) {
            Some(What::Holds { .. }) => return None,
            Some(What::Waits { turn }) => room.queue.range(..turn).count(),
            None => room.queue.len(),
        };
        let before = room.held().saturating_add(ahead);
        (before >= limit).then(|| u32::try_from(ahead).unwrap_or(u32::MAX))
    }

    /// Whether there is room to note `place`.
    fn admit(&self, place: &Place) -> Result<(), HoldError> {
        if self.entry(place).is_some() {
            return Ok(());
        }
        let room = self.rooms.get(&place.pool);
        if room.map_or(0, |room| room.entries.len()) >= MAX_HOLDERS {
            return Err(HoldError::Refused("the pool has too many holders"));
        }
        if self.ends.len() >= self.most {
            return Err(HoldError::Refused("the store has too many holders"));
        }
        Ok(())
    }

    /// The turn that `place` waits for; a new one if it does not wait yet.
    fn turn_of(&mut self, place: &Place) -> u64 {
        if let Some(What::Waits { turn }) = self.entry(place).map(|entry| &entry.what) {
            return *turn;
        }
        self.turn = self.turn.saturating_add(1);
        self.turn
    }

    fn entry(&self, place: &Place) -> Option<&Entry> {
        self.rooms.get(&place.pool)?.entries.get(&place.holder)
    }

    /// Notes what becomes of `place`, in the stead of what it was.
    fn put(&mut self, place: Place, until: Millis, what: What) {
        self.remove(&place);
        let Place { pool, holder } = place;
        self.ends.insert((until, pool.clone(), holder.clone()));
        let room = self.rooms.entry(pool).or_default();
        if let What::Waits { turn } = what {
            room.queue.insert(turn);
        }
        room.entries.insert(holder, Entry { until, what });
    }

    fn remove(&mut self, place: &Place) {
        let Some(room) = self.rooms.get_mut(&place.pool) else {
            return;
        };
        let Some(Entry { until, what }) = room.entries.remove(&place.holder) else {
            return;
        };
        if let What::Waits { turn } = what {
            room.queue.remove(&turn);
        }
        if room.entries.is_empty() {
            self.rooms.remove(&place.pool);
        }
        let Place { pool, holder } = place.clone();
        self.ends.remove(&(until, pool, holder));
    }

    /// Drops what has lapsed.
    fn purge(&mut self, now: Millis) {
        while let Some((until, pool, holder)) = self.ends.first().cloned() {
            if until > now {
                return;
            }
            self.remove(&Place { pool, holder });
        }
    }
}

impl Room {
    fn held(&self) -> usize {
        self.entries.len().saturating_sub(self.queue.len())
    }
}

#[cfg(test)]
mod tests;
