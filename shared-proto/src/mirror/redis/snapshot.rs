//! The state at one position of the log, read in chunks while others write.
//!
//! The end of the log is noted, then every record is read, then the entries
//! that came meanwhile are folded in. Each record that was read is at least as
//! new as the noted end, and no newer than the last entry, so the fold makes
//! the state exact at that entry.

use std::collections::BTreeMap;

use ::redis::{Value, cmd};
use tokio::time::Instant;

use super::fault::Fault;
use super::link::{Call, Shared};
use super::reply::{Answer, Entry, last_generated, lossy, malformed};
use crate::mirror::key::{Key, Spelled};
use crate::mirror::log::{Logged, Position};
use crate::mirror::record::{Record, Unreadable};
use crate::mirror::{LoadError, Snapshot, Unreachable};

/// Before the first entry of any log.
pub(super) const ORIGIN: Position = Position::new(0, 0);
/// Names read at a time.
const NAMES: usize = 256;
/// Bodies read at a time, in bytes, beyond which no further record is begun.
const CHUNK_BYTES: usize = 256 << 10;
/// Entries of the log read at a time.
pub(super) const ENTRIES: usize = 64;
/// Records and bytes of a snapshot at most.
const MAX_RECORDS: usize = 1 << 20;
const MAX_BYTES: usize = 1 << 30;
/// Attempts, when the log was trimmed or the server changed meanwhile.
const ATTEMPTS: usize = 3;

/// One record, by its key.
pub(super) async fn load(shared: &Shared, key: &Key) -> Result<Option<Record>, LoadError> {
    let spelled = shared.keys.spell(key);
    let mut answer = read(shared, vec![spelled.clone()]).await?;
    let record = answer.record(key, &spelled).map_err(Unreachable::from)?;
    Ok(record.transpose()?)
}

pub(super) async fn snapshot(shared: &Shared) -> Result<Snapshot, Unreachable> {
    for _ in 0..ATTEMPTS {
        // Makes sure that there is a connection.
        let generation = shared.link(shared.end(Instant::now())).await?.generation;
        let mut table = Table::default();
        let mut position = head(shared).await?;
        read_all(shared, &mut table).await?;
        let exact = fold(shared, &mut table, &mut position).await?;
        if exact && shared.generation() == generation {
            shared.read_under.send_replace(generation);
            return Ok(table.finish(position));
        }
    }
    let why = "its log turns over faster than its records can be read";
    Err(Unreachable(why.into()))
}

/// The end of the log.
async fn head(shared: &Shared) -> Result<Position, Unreachable> {
    let mut command = cmd("XREVRANGE");
    command
        .arg(&shared.log)
        .arg("+")
        .arg("-")
        .arg("COUNT")
        .arg(1);
    let last = shared.command(&command).await?;
    let last = Answer::of(last)?.next();
    let entry = last.map(|last| Entry::of(&shared.keys, last)).transpose()?;
    if let Some(entry) = entry {
        return Ok(entry.position);
    }
    // It may have had entries that somebody took away.
    let exists = shared.command(cmd("EXISTS").arg(&shared.log)).await?;
    if exists != Value::Int(1) {
        return Ok(ORIGIN);
    }
    let info = shared
        .command(cmd("XINFO").arg("STREAM").arg(&shared.log))
        .await?;
    Ok(last_generated(info)?.unwrap_or(ORIGIN))
}

async fn read(shared: &Shared, keys: Vec<String>) -> Result<Answer, Unreachable> {
    let call = Call {
        lua: &shared.scripts.read,
        keys,
        args: vec![CHUNK_BYTES.to_string().into_bytes()],
        writes: false,
    };
    let (answer, _) = shared.call(&call).await?;
    Ok(answer)
}

async fn read_all(shared: &Shared, table: &mut Table) -> Result<(), Unreachable> {
    let mut cursor = "0".to_owned();
    loop {
        let mut command = cmd("ZSCAN");
        command
            .arg(&shared.index)
            .arg(&cursor)
            .arg("COUNT")
            .arg(NAMES);
        let mut page = Answer::of(shared.command(&command).await?)?;
        cursor = page.text()?;
        let mut wanted = Vec::new();
        let mut names = page.list()?;
        while names.len() > 0 {
            let name = names.bytes()?;
            names.next(); // its expiry
            let spelled = shared.keys.spell_name(&lossy(&name));
            match shared.keys.parse(&spelled) {
                Spelled::Key(key) => wanted.push((spelled, key)),
                Spelled::Malformed | Spelled::Elsewhere => table.malformed(spelled)?,
            }
        }
        read_named(shared, table, wanted).await?;
        if cursor == "0" {
            return Ok(());
        }
    }
}

async fn read_named(
    shared: &Shared,
    table: &mut Table,
    mut wanted: Vec<(String, Key)>,
) -> Result<(), Unreachable> {
    while !wanted.is_empty() {
        let some = wanted.iter().take(NAMES);
        let keys = some.map(|(spelled, _)| spelled.clone()).collect();
        let mut answer = read(shared, keys).await?;
        if answer.len() == 0 {
            return Err(Fault::odd().into());
        }
        let done = answer.len().min(wanted.len());
        for (spelled, key) in wanted.drain(..done) {
            // One that is gone has expired long since, or the log tells.
            if let Some(found) = answer.record(&key, &spelled)? {
                table.read(spelled, found)?;
            }
        }
    }
    Ok(())
}

/// Takes in the entries after `position` and moves it to the last of them;
/// false when some of them are gone.
async fn fold(
    shared: &Shared,
    table: &mut Table,
    position: &mut Position,
) -> Result<bool, Unreachable> {
    loop {
        let mut command = cmd("XRANGE");
        command.arg(&shared.log).arg(format!("({position}"));
        command.arg("+").arg("COUNT").arg(ENTRIES);
        let mut page = Answer::of(shared.command(&command).await?)?;
        let full = page.len() >= ENTRIES;
        while let Some(value) = page.next() {
            let entry = Entry::of(&shared.keys, value)?;
            if entry.before.is_some_and(|before| before != *position) {
                return Ok(false);
            }
            *position = entry.position;
            table.fold(entry)?;
        }
        if !full {
            return Ok(true);
        }
    }
}

/// What has been read, by the spelled key, with the revision as far as there
/// is one.
#[derive(Default)]
struct Table {
    rows: BTreeMap<String, (u64, Result<Record, Unreadable>)>,
    bytes: usize,
}

impl Table {
    fn malformed(&mut self, spelled: String) -> Result<(), Unreachable> {
        let found = Unreadable {
            key: spelled.as_str().into(),
            why: malformed(),
        };
        self.read(spelled, Err(found))
    }

    fn read(
        &mut self,
        spelled: String,
        found: Result<Record, Unreadable>,
    ) -> Result<(), Unreachable> {
        let (revision, bytes) = match &found {
            Ok(record) => (record.revision.number(), record.body.len()),
            Err(_) => (0, 0),
        };
        self.bytes = self.bytes.saturating_add(bytes);
        self.rows.insert(spelled, (revision, found));
        if self.rows.len() > MAX_RECORDS || self.bytes > MAX_BYTES {
            let why = format!("it holds more than {MAX_RECORDS} records or {MAX_BYTES} bytes");
            return Err(Unreachable(why.into()));
        }
        Ok(())
    }

    fn fold(&mut self, entry: Entry) -> Result<(), Unreachable> {
        let Some((spelled, revision)) = entry.subject else {
            return Ok(());
        };
        if self
            .rows
            .get(&spelled)
            .is_some_and(|(known, _)| *known >= revision)
        {
            return Ok(());
        }
        match entry.change {
            Logged::Put(record) => self.read(spelled, Ok(record)),
            Logged::Unreadable(what) => self.read(spelled, Err(what)),
            Logged::Deleted { .. } => {
                self.rows.remove(&spelled);
                Ok(())
            }
        }
    }

    fn finish(self, position: Position) -> Snapshot {
        let mut snapshot = Snapshot {
            records: Vec::new(),
            unreadable: Vec::new(),
            position,
        };
        for (_, found) in self.rows.into_values() {
            match found {
                Ok(record) => snapshot.records.push(record),
                Err(unreadable) => snapshot.unreadable.push(unreadable),
            }
        }
        snapshot
    }
}
