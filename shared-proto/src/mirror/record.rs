//! The stored form of a record.
//!
//! A record is a MessagePack map, the envelope, with the record's body inside
//! as bytes; the body is a MessagePack map with named fields of its own. Both
//! have versions:
//!
//! * `format` is the envelope's. A newer one is reported as
//!   [`Why::Newer`] and stays stored as it is.
//! * `version` is the body's, counted per kind. A store carries bodies it does
//!   not understand; [`Record::decode`] says [`BodyError::Newer`]. A commit of
//!   an older version on top of a newer one is refused.
//!
//! A field is added without a new version if older readers may ignore *and
//! drop* it; it needs `#[serde(default)]`, since older records lack it.
//! Anything else is a new version, and its type still reads the old ones.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use rmp_serde::config::BytesMode;
use rmp_serde::{Deserializer, Serializer};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::key::Key;
use crate::clock::Millis;

/// Largest stored record, envelope included, in bytes.
pub const MAX_RECORD_BYTES: usize = 1 << 20;

/// The envelope's format that this version writes, and the newest it reads.
pub const ENVELOPE_FORMAT: u16 = 1;

/// Deepest nesting that is read: more than any state machine needs, and little
/// enough for the stack.
const MAX_DEPTH: usize = 32;

/// A record's revision. For one key they rise with each commit, and never
/// repeat or go back; between keys they mean nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Revision(u64);

impl Revision {
    /// The revision with this number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Its number.
    pub const fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// One committed state of one thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Which thing.
    pub key: Key,
    /// Version of the body, counted per kind.
    pub version: u16,
    /// What the next commit on this key has to expect.
    pub revision: Revision,
    /// When it was committed, store time.
    pub written_at: Millis,
    /// When it stops meaning anything; `None` is never.
    pub expires_at: Option<Millis>,
    /// The state, a MessagePack map; see [`Record::decode`].
    pub body: Bytes,
}

/// State that is kept in a record's body.
///
/// Its `Serialize` has to give a map with named fields (a plain struct does).
pub trait Body: Serialize + DeserializeOwned {
    /// The kind of its keys, from [`key`](super::key).
    const KIND: &'static str;
    /// The version it writes; it reads this one and all before.
    const VERSION: u16;
}

/// Why a body can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// A newer version wrote it: leave it alone.
    #[error("its version is {found}, this program knows up to {known}")]
    Newer {
        /// The body's version.
        found: u16,
        /// The newest version this program reads.
        known: u16,
    },
    /// The bytes make no sense.
    #[error("its body can't be read: {0}")]
    Corrupt(Arc<str>),
    /// The record is of another kind.
    #[error("it is of kind {0}")]
    OtherKind(Arc<str>),
    /// The state can't be written as a map of named fields.
    #[error("the state can't be written: {0}")]
    Unwritable(Arc<str>),
}

impl Record {
    /// Whether it has stopped meaning anything at `now`.
    pub fn is_expired(&self, now: Millis) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }

    /// The state inside. Never panics, and never allocates more than in
    /// proportion to the body's own length.
    pub fn decode<B: Body>(&self) -> Result<B, BodyError> {
        if self.key.kind() != B::KIND {
            return Err(BodyError::OtherKind(self.key.kind().into()));
        }
        if self.version > B::VERSION {
            return Err(BodyError::Newer {
                found: self.version,
                known: B::VERSION,
            });
        }
        if !is_map(&self.body) {
            return Err(BodyError::Corrupt("not a map".into()));
        }
        read_whole(&self.body).map_err(BodyError::Corrupt)
    }

    /// The stored form.
    pub(crate) fn to_stored(&self) -> Result<Vec<u8>, BodyError> {
        let envelope = EnvelopeOut {
            format: ENVELOPE_FORMAT,
            kind: self.key.kind(),
            version: self.version,
            revision: self.revision,
            written_at: self.written_at,
            expires_at: self.expires_at,
            body: &self.body,
        };
        let mut out = Vec::with_capacity(self.body.len().saturating_add(160));
        let mut serializer = Serializer::new(&mut out)
            .with_struct_map()
            .with_bytes(BytesMode::ForceAll);
        match envelope.serialize(&mut serializer) {
            Ok(()) => Ok(out),
            Err(why) => Err(BodyError::Unwritable(why.to_string().into())),
        }
    }

    /// Reads what is stored under `key`. Never panics, and never allocates
    /// more than in proportion to `stored`.
    pub(crate) fn from_stored(key: &Key, stored: &[u8]) -> Result<Self, Why> {
        let corrupt = Why::Corrupt;
        if stored.len() > MAX_RECORD_BYTES {
            let why = format!(
                "{} bytes, over the limit of {MAX_RECORD_BYTES}",
                stored.len()
            );
            return Err(corrupt(why.into()));
        }
        let Header { format } = read_whole(stored).map_err(corrupt)?;
        if format > ENVELOPE_FORMAT {
            return Err(Why::Newer { found: format });
        }
        let envelope: Envelope = read_whole(stored).map_err(corrupt)?;
        if envelope.kind != key.kind() {
            return Err(corrupt(format!("its kind is {:?}", envelope.kind).into()));
        }
        Ok(Self {
            key: key.clone(),
            version: envelope.version,
            revision: envelope.revision,
            written_at: envelope.written_at,
            expires_at: envelope.expires_at,
            body: envelope.body.into(),
        })
    }
}

/// Something stored that this version can't read. It is kept as it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the stored record {key:?} can't be read: {why}")]
pub struct Unreadable {
    /// The key as spelled in the store.
    pub key: Arc<str>,
    /// What is the matter.
    pub why: Why,
}

/// Why a stored record can't be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// A newer version wrote it; it can't be overwritten by this one.
    #[error("its format is {found}, this program knows up to {ENVELOPE_FORMAT}")]
    Newer {
        /// The envelope's format.
        found: u16,
    },
    /// The bytes make no sense.
    #[error("it is corrupt: {0}")]
    Corrupt(Arc<str>),
}

/// The state as the bytes of a body.
pub(crate) fn encode_body<B: Body>(state: &B) -> Result<Bytes, BodyError> {
    let body = rmp_serde::to_vec_named(state)
        .map_err(|why| BodyError::Unwritable(why.to_string().into()))?;
    if is_map(&body) {
        Ok(body.into())
    } else {
        Err(BodyError::Unwritable("not a map".into()))
    }
}

/// Whether MessagePack `bytes` begin with a map's marker.
fn is_map(bytes: &[u8]) -> bool {
    matches!(bytes.first(), Some(0x80..=0x8f | 0xde | 0xdf))
}

/// Decodes all of `bytes`; a rest is an error.
fn read_whole<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Arc<str>> {
    let mut rest = bytes;
    let mut deserializer = Deserializer::new(&mut rest);
    deserializer.set_max_depth(MAX_DEPTH);
    let value = T::deserialize(&mut deserializer).map_err(|why| why.to_string())?;
    if rest.is_empty() {
        Ok(value)
    } else {
        Err(format!("{} bytes too many", rest.len()).into())
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct EnvelopeOut<'a> {
    format: u16,
    kind: &'a str,
    version: u16,
    revision: Revision,
    written_at: Millis,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<Millis>,
    body: &'a [u8],
}

/// What every format has, so that a newer one is known for what it is.
#[derive(Deserialize)]
struct Header {
    format: u16,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    kind: String,
    version: u16,
    revision: Revision,
    written_at: Millis,
    #[serde(default)]
    expires_at: Option<Millis>,
    body: Vec<u8>,
}

#[cfg(test)]
mod tests;
