//! What was acknowledged, noted beside the store's file.
//!
//! After a kill the database takes the newest of its last two states that has
//! good checksums: the newest may have been half-written, and then nobody was
//! told of it. But if it was acknowledged and *then* got damaged or cut off,
//! that would lose it without a word. So the newest acknowledged revision is
//! noted in a file of its own, and a database that fell behind its note is
//! damaged. The note is not flushed: a killed process leaves it whole, and
//! after a power failure it is at worst too old, which accuses nobody.
//!
//! A note counts for one opening of the file only, so that a backup can be put
//! in the file's place.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek as _, SeekFrom, Write as _};
use std::path::Path;

/// Longest note that is read, in bytes.
const MAX_BYTES: u64 = 64;

/// The newest revision acknowledged in one opening of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Note {
    /// Which opening.
    pub(super) opened: u64,
    /// The revision.
    pub(super) revision: u64,
}

/// The file that holds the note.
#[derive(Debug)]
pub(super) struct Witness(File);

impl Witness {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        options.open(path).map(Self)
    }

    /// The note, unless there is none or it makes no sense.
    pub(super) fn read(&mut self) -> io::Result<Option<Note>> {
        let mut text = Vec::new();
        self.0.seek(SeekFrom::Start(0))?;
        Read::by_ref(&mut self.0)
            .take(MAX_BYTES)
            .read_to_end(&mut text)?;
        Ok(parse(&text))
    }

    /// Replaces the note. All are of one length, so nothing of a former one stays.
    pub(super) fn write(&mut self, note: Note) -> io::Result<()> {
        let Note { opened, revision } = note;
        self.0.seek(SeekFrom::Start(0))?;
        self.0
            .write_all(format!("{opened:020} {revision:020}\n").as_bytes())
    }
}

fn parse(text: &[u8]) -> Option<Note> {
    let line = std::str::from_utf8(text).ok()?.strip_suffix('\n')?;
    let (opened, revision) = line.split_once(' ')?;
    let number = |digits: &str| (digits.len() == 20).then(|| digits.parse().ok()).flatten();
    Some(Note {
        opened: number(opened)?,
        revision: number(revision)?,
    })
}

#[cfg(test)]
mod tests;
