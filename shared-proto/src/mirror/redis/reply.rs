//! Replies, and the records and log entries in them. Total: what is stored may
//! be anybody's bytes.

use std::collections::HashMap;
use std::sync::Arc;

use ::redis::Value;

use super::fault::Fault;
use crate::clock::Millis;
use crate::mirror::key::{Key, Keyspace, Spelled};
use crate::mirror::log::{Logged, Position};
use crate::mirror::record::{ENVELOPE_FORMAT, MAX_RECORD_BYTES, Record, Revision, Unreadable, Why};

/// Largest number that the scripts count with.
const MAX_EXACT: u64 = (1 << 53) - 1;

/// The last id that a stream ever gave, from what `XINFO STREAM` tells; `None`
/// when there is none in it.
pub(super) fn last_generated(info: Value) -> Result<Option<Position>, Fault> {
    let mut info = Answer::of(info)?;
    while let Some(name) = info.next() {
        if bytes(name).as_deref() == Some(b"last-generated-id") {
            return info.position().map(Some);
        }
        info.next();
    }
    Ok(None)
}

/// The items of an array, read one after the other.
pub(super) struct Answer(std::vec::IntoIter<Value>);

impl Answer {
    pub(super) fn of(value: Value) -> Result<Self, Fault> {
        if let Value::Array(items) = value {
            return Ok(Self(items.into_iter()));
        }
        // A read of a stream finds nothing.
        let none = value == Value::Nil;
        none.then(|| Self(Vec::new().into_iter()))
            .ok_or_else(Fault::odd)
    }

    pub(super) fn next(&mut self) -> Option<Value> {
        self.0.next()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn bytes(&mut self) -> Result<Vec<u8>, Fault> {
        self.next().and_then(bytes).ok_or_else(Fault::odd)
    }

    pub(super) fn text(&mut self) -> Result<String, Fault> {
        String::from_utf8(self.bytes()?).map_err(|_| Fault::odd())
    }

    pub(super) fn number(&mut self) -> Result<u64, Fault> {
        number(&self.bytes()?, u64::MAX).ok_or_else(Fault::odd)
    }

    pub(super) fn list(&mut self) -> Result<Self, Fault> {
        self.next().map_or_else(|| Err(Fault::odd()), Self::of)
    }

    pub(super) fn position(&mut self) -> Result<Position, Fault> {
        position(&self.bytes()?).ok_or_else(Fault::odd)
    }

    /// What is stored under `key`, as a script tells it.
    pub(super) fn record(
        &mut self,
        key: &Key,
        spelled: &str,
    ) -> Result<Option<Result<Record, Unreadable>>, Fault> {
        let mut told = self.list()?;
        let read = match told.len() {
            0 => return Ok(None),
            1 => Err(Why::Corrupt(lossy(&told.bytes()?))),
            6 => {
                let mut field = || told.next().and_then(bytes);
                let fields = Fields {
                    format: field(),
                    version: field(),
                    revision: field(),
                    written_at: field(),
                    expires_at: field(),
                    body: field(),
                };
                fields.read(key)
            }
            _ => return Err(Fault::odd()),
        };
        let named = |why| Unreadable {
            key: spelled.into(),
            why,
        };
        Ok(Some(read.map_err(named)))
    }
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the library's list of replies is open, and no other is text"
)]
fn bytes(value: Value) -> Option<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.into_bytes()),
        Value::Okay => Some(b"OK".to_vec()),
        Value::Int(number) => Some(number.to_string().into_bytes()),
        _ => None,
    }
}

/// The fields of a stored record; the scripts judge them by the same rules.
struct Fields {
    format: Option<Vec<u8>>,
    version: Option<Vec<u8>>,
    revision: Option<Vec<u8>>,
    written_at: Option<Vec<u8>>,
    expires_at: Option<Vec<u8>>,
    body: Option<Vec<u8>>,
}

impl Fields {
    fn read(self, key: &Key) -> Result<Record, Why> {
        let needed = |field: Option<Vec<u8>>, name: &str, most| {
            let number = field.as_deref().and_then(|bytes| number(bytes, most));
            number.ok_or_else(|| Why::Corrupt(format!("its field {name} is no number").into()))
        };
        let u16_field = |field, name| {
            let number = needed(field, name, u16::MAX.into())?;
            Ok(u16::try_from(number).unwrap_or(u16::MAX))
        };
        let format = u16_field(self.format, "f")?;
        if format > ENVELOPE_FORMAT {
            return Err(Why::Newer { found: format });
        }
        let version = u16_field(self.version, "v")?;
        let revision = needed(self.revision, "r", MAX_EXACT)?;
        let written_at = needed(self.written_at, "w", MAX_EXACT)?;
        let expires_at = match self.expires_at {
            Some(field) => Some(needed(Some(field), "x", u64::MAX)?),
            None => None,
        };
        let body = self
            .body
            .ok_or_else(|| Why::Corrupt("it has no body".into()))?;
        if body.len() > MAX_RECORD_BYTES {
            return Err(Why::Corrupt("its body is over the limit".into()));
        }
        Ok(Record {
            key: key.clone(),
            version,
            revision: Revision::new(revision),
            written_at: Millis::from_epoch_ms(written_at),
            expires_at: expires_at.map(Millis::from_epoch_ms),
            body: body.into(),
        })
    }
}

/// An entry of the log.
pub(super) struct Entry {
    pub(super) position: Position,
    /// The entry before it; `None` in one that this program did not write.
    pub(super) before: Option<Position>,
    /// The spelled key, and the revision as far as it can be read.
    pub(super) subject: Option<(String, u64)>,
    pub(super) change: Logged,
}

impl Entry {
    pub(super) fn of(keys: &Keyspace, value: Value) -> Result<Self, Fault> {
        let mut parts = Answer::of(value)?;
        let id = parts.text()?;
        let position = position(id.as_bytes()).ok_or_else(Fault::odd)?;
        let mut fields = HashMap::new();
        let mut pairs = parts.list()?;
        while let Some(name) = pairs.next() {
            let value = pairs.bytes()?;
            fields.insert(bytes(name).ok_or_else(Fault::odd)?, value);
        }
        let before = fields.get(b"p".as_slice());
        let before = before.and_then(|before| self::position(before));
        let name = fields.remove(b"k".as_slice()).map(String::from_utf8);
        let (Some(_), Some(Ok(name))) = (before, name) else {
            return Ok(Self {
                position,
                before,
                subject: None,
                change: Logged::Unreadable(Unreadable {
                    key: format!("{} {id}", keys.log()).into(),
                    why: Why::Corrupt("not an entry of this program".into()),
                }),
            });
        };
        let spelled = keys.spell_name(&name);
        let revision = fields.get(b"r".as_slice());
        let revision = revision.and_then(|r| number(r, MAX_EXACT));
        let change = change(keys, &spelled, fields);
        Ok(Self {
            position,
            before,
            change: change.unwrap_or_else(|why| {
                Logged::Unreadable(Unreadable {
                    key: spelled.as_str().into(),
                    why,
                })
            }),
            subject: Some((spelled, revision.unwrap_or(u64::MAX))),
        })
    }
}

fn change(
    keys: &Keyspace,
    spelled: &str,
    mut fields: HashMap<Vec<u8>, Vec<u8>>,
) -> Result<Logged, Why> {
    let Spelled::Key(key) = keys.parse(spelled) else {
        return Err(malformed());
    };
    let mut field = |name: &[u8]| fields.remove(name);
    let Some(deleted) = field(b"d") else {
        let fields = Fields {
            format: field(b"f"),
            version: field(b"v"),
            revision: field(b"r"),
            written_at: field(b"w"),
            expires_at: field(b"x"),
            body: field(b"b"),
        };
        return fields.read(&key).map(Logged::Put);
    };
    let revision = field(b"r");
    let revision = revision.and_then(|r| number(&r, MAX_EXACT));
    match (number(&deleted, MAX_EXACT), revision) {
        (Some(at), Some(revision)) => Ok(Logged::Deleted {
            key,
            revision: Revision::new(revision),
            at: Millis::from_epoch_ms(at),
        }),
        _ => Err(Why::Corrupt("its deletion makes no sense".into())),
    }
}

/// Why a name that no key is spelled as can't be read.
pub(super) fn malformed() -> Why {
    Why::Corrupt("not a key of this program".into())
}

/// Text of bytes that should be text.
pub(super) fn lossy(bytes: &[u8]) -> Arc<str> {
    String::from_utf8_lossy(bytes).into()
}

/// A number in its only spelling.
fn number(bytes: &[u8], most: u64) -> Option<u64> {
    let plain =
        bytes.iter().all(u8::is_ascii_digit) && (bytes.first() != Some(&b'0') || bytes == b"0");
    let text = std::str::from_utf8(bytes).ok().filter(|_| plain)?;
    text.parse().ok().filter(|number| *number <= most)
}

fn position(id: &[u8]) -> Option<Position> {
    let (major, minor) = std::str::from_utf8(id).ok()?.split_once('-')?;
    let part = |text: &str| number(text.as_bytes(), u64::MAX);
    Some(Position::new(part(major)?, part(minor)?))
}

#[cfg(test)]
mod tests;
