//! What nodes and coordinators tell of themselves while they live.
//!
//! Each holds a place in [`Pool::Nodes`](crate::mirror::hold::Pool::Nodes),
//! kept every [`BEAT_MS`] for [`LIFETIME_MS`], with a note: a `MessagePack` map
//! with named fields. Readers ignore fields that they don't know, so a newer
//! node is listed by an older one; a note that makes no sense is no reason to
//! take a node for dead.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::clock::Millis;
use crate::mirror::hold::{Held, MAX_NOTE_BYTES};

/// How often a node tells that it lives, ms.
pub const BEAT_MS: u64 = 2_000;

/// How long it counts as living after the last time, ms.
pub const LIFETIME_MS: u64 = 6_000;

/// The version of notes that is written.
pub const NOTE_VERSION: u16 = 1;

/// Longest text of a note that is shown, in characters.
const MAX_TEXT: usize = 128;

/// What a process does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Role {
    /// Routes requests.
    Router,
    /// Coordinates, or stands by to.
    Coordinator,
    /// Something that this version does not know.
    #[default]
    #[serde(other)]
    Other,
}

/// What a node tells of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Note {
    /// Version of the note; what is added later has a default.
    pub format: u16,
    /// What it does.
    pub role: Role,
    /// Version of the program.
    pub version: String,
    /// When it started, store time.
    pub started_at: Millis,
    /// When this was written, store time.
    pub at: Millis,
    /// Client requests under way.
    pub in_flight: u64,
    /// From the last change's commit to its application, ms.
    pub lag_ms: u64,
    /// Where it listens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Of a coordinator, whether it leads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leads: Option<bool>,
}

/// A node or coordinator that lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its id.
    pub id: String,
    /// What it tells; a default one when its note makes no sense.
    pub note: Note,
    /// Until when it counts as living, store time.
    pub until: Millis,
}

impl Note {
    /// The stored form, at most [`MAX_NOTE_BYTES`].
    pub fn to_bytes(&self) -> Bytes {
        let mut note = self.clone();
        cut(&mut note.version);
        if let Some(address) = &mut note.address {
            cut(address);
        }
        // A plain struct of numbers and short texts can be written.
        rmp_serde::to_vec_named(&note).unwrap_or_default().into()
    }

    /// Reads what a node wrote. Total: what makes no sense is a default note.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        if bytes.len() > MAX_NOTE_BYTES {
            return Self::default();
        }
        let mut note: Self = rmp_serde::from_slice(bytes).unwrap_or_default();
        cut(&mut note.version);
        if let Some(address) = &mut note.address {
            cut(address);
        }
        note
    }
}

fn cut(text: &mut String) {
    if let Some((end, _)) = text.char_indices().nth(MAX_TEXT) {
        text.truncate(end);
    }
}

impl From<Held> for Member {
    fn from(held: Held) -> Self {
        let mut id = held.holder.0.to_string();
        cut(&mut id);
        Self {
            id,
            note: Note::from_bytes(&held.note),
            until: held.until,
        }
    }
}

/// How many routers of `members` live at `now`, at least 1: whoever asks lives.
pub fn live_routers(members: &[Member], now: Millis) -> u32 {
    let live = |member: &&Member| member.note.role != Role::Coordinator && member.until > now;
    let count = members.iter().filter(live).count();
    u32::try_from(count).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests;
