//! The only spelling of record keys.
//!
//! A spelled key is `{PREFIX}:KIND:ID`, for example
//! `{omniroute}:health:acme-1`. The braces are part of it: a store that
//! spreads keys over several servers places them by the part in braces, and a
//! record has to live beside the log for both to change in one step.
//!
//! Ids and prefixes are any text: each byte outside `A-Z a-z 0-9 . _ ~ -` is
//! written as `%XX`, so no id can imitate another key, a separator or a brace.

use std::fmt::Write as _;
use std::sync::Arc;

use super::hold::Pool;
use crate::id::{ConnectionId, ProviderId};

/// The kind of a connection's health record.
pub const HEALTH: &str = "health";
/// The kind of the record of a connection's locked models.
pub const LOCKOUT: &str = "lockout";
/// The kind of the record of what a connection does at its usage wall.
pub const LANE: &str = "lane";
/// The kind of a provider's breaker record.
pub const BREAKER: &str = "breaker";
/// The kind of the record of what combos failed on at a provider.
pub const GATE: &str = "gate";
/// The kind of the record of how many tools a provider takes.
pub const TOOLS: &str = "tools";
/// The kind of the record of a lease by its owner.
pub const LEASE: &str = "lease";
/// The kind of the record that says which lease a connection is bound by.
pub const BOUND: &str = "bound";
/// The kind of a session's pin to a connection.
pub const PIN: &str = "pin";
/// The kind of a connection's stored OAuth tokens.
pub const TOKEN: &str = "token";
/// The kind of the lock on refreshing a connection's tokens.
pub const REFRESH: &str = "refresh";
/// The kind of the coordinators' leader record.
pub const LEADER: &str = "leader";
/// The kind of the record of saved settings.
pub const SETTINGS: &str = "settings";

/// The kind of the record of the addresses that a node saw connections leave by.
pub const EGRESS: &str = "egress";

/// The one id of the leader's kind.
const LEADER_ID: &str = "coordinator";
/// The one id of the settings' kind.
const SETTINGS_ID: &str = "saved";

/// Longest spelled key, in bytes.
pub const MAX_KEY_BYTES: usize = 4096;

/// Which record. The order is that of the spelled keys' parts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// Health of a connection.
    Health(ConnectionId),
    /// Locked models of a connection.
    Lockout(ConnectionId),
    /// What a connection does at its usage wall.
    Lane(ConnectionId),
    /// Breaker of a provider.
    Breaker(ProviderId),
    /// What combos failed on at a provider.
    Gate(ProviderId),
    /// How many tools a provider takes.
    Tools(ProviderId),
    /// A session lease, by the hash of its owner's token (lower-case hex).
    Lease(Arc<str>),
    /// Which lease a connection is bound by.
    Bound(ConnectionId),
    /// A session's pin, by the hash of its key (lower-case hex). Quiet.
    Pin(Arc<str>),
    /// OAuth tokens of a connection, encrypted.
    Token(ConnectionId),
    /// Who refreshes the tokens of a connection.
    Refresh(ConnectionId),
    /// Who leads the coordinators.
    Leader,
    /// What was saved of the settings.
    Settings,
    /// By which addresses connections leave, as the node of this name saw it.
    Egress(Arc<str>),
    /// A kind that this version does not know; carried as it is.
    Other(OtherKey),
}

/// The key of a record whose kind this version does not know.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OtherKey {
    kind: Arc<str>,
    /// As spelled: only the kind's own version knows what it is made of.
    spelled_id: Arc<str>,
}

impl Key {
    /// A key of a kind that has no variant of its own. `None` when `kind` has
    /// one, or is not made of lower-case letters, digits, `_` and `-`.
    pub fn other(kind: &str, id: &str) -> Option<Self> {
        Self::other_spelled(kind, &escape(id))
    }

    fn other_spelled(kind: &str, spelled_id: &str) -> Option<Self> {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-';
        let free = !matches!(
            kind,
            "" | HEALTH
                | LOCKOUT
                | LANE
                | BREAKER
                | TOOLS
                | LEASE
                | BOUND
                | PIN
                | TOKEN
                | REFRESH
                | LEADER
                | SETTINGS
                | GATE
                | EGRESS
        ) && kind.bytes().all(plain);
        free.then(|| {
            Self::Other(OtherKey {
                kind: kind.into(),
                spelled_id: spelled_id.into(),
            })
        })
    }

    /// Whether changes are written to the log and the record is part of
    /// snapshots. A quiet record is only read by its key: there may be as many
    /// as there are sessions.
    pub const fn is_logged(&self) -> bool {
        !matches!(self, Self::Pin(_))
    }

    /// The kind's word in keys and records.
    pub fn kind(&self) -> &str {
        match self {
            Self::Health(_) => HEALTH,
            Self::Lockout(_) => LOCKOUT,
            Self::Lane(_) => LANE,
            Self::Breaker(_) => BREAKER,
            Self::Gate(_) => GATE,
            Self::Tools(_) => TOOLS,
            Self::Lease(_) => LEASE,
            Self::Bound(_) => BOUND,
            Self::Pin(_) => PIN,
            Self::Token(_) => TOKEN,
            Self::Refresh(_) => REFRESH,
            Self::Leader => LEADER,
            Self::Settings => SETTINGS,
            Self::Egress(_) => EGRESS,
            Self::Other(other) => &other.kind,
        }
    }

    fn spelled_id(&self) -> String {
        match self {
            Self::Health(id)
            | Self::Lockout(id)
            | Self::Lane(id)
            | Self::Bound(id)
            | Self::Token(id)
            | Self::Refresh(id) => escape(id.as_str()),
            Self::Breaker(id) | Self::Gate(id) | Self::Tools(id) => escape(id.as_str()),
            Self::Lease(name) | Self::Pin(name) | Self::Egress(name) => escape(name),
            Self::Leader => LEADER_ID.to_owned(),
            Self::Settings => SETTINGS_ID.to_owned(),
            Self::Other(other) => other.spelled_id.to_string(),
        }
    }
}

/// The keys of one deployment: those that begin with its prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keyspace {
    /// With its braces and the colon.
    head: String,
}

impl Keyspace {
    /// The keys under `prefix`, any text. Two prefixes never share a key.
    pub fn new(prefix: &str) -> Self {
        // Empty braces would count as no braces; a lone `%` is no escape.
        let name = if prefix.is_empty() {
            "%".to_owned()
        } else {
            escape(prefix)
        };
        Self {
            head: format!("{{{name}}}:"),
        }
    }

    /// The stored form of `key`.
    pub fn spell(&self, key: &Key) -> String {
        format!("{}{}:{}", self.head, key.kind(), key.spelled_id())
    }

    /// The change log of a store that keeps it beside the records. Like all
    /// that follow, no record is spelled so.
    pub(crate) fn log(&self) -> String {
        format!("{}log", self.head)
    }

    /// The names of all logged records.
    pub(crate) fn index(&self) -> String {
        format!("{}index", self.head)
    }

    /// The newest revision, and what the log weighs.
    pub(crate) fn meta(&self) -> String {
        format!("{}meta", self.head)
    }

    /// One of the sets that make up a pool of holders.
    pub(crate) fn pool(&self, pool: &Pool, part: PoolPart) -> String {
        let part = match part {
            PoolPart::Held => "held",
            PoolPart::Queue => "queue",
            PoolPart::Patience => "patience",
            PoolPart::Notes => "notes",
        };
        let name = match pool {
            Pool::Slots(id) => format!("slots:{}", escape(id.as_str())),
            Pool::Leased(id) => format!("leased:{}", escape(id.as_str())),
            Pool::Nodes => "nodes".to_owned(),
            Pool::Uses(id) => format!("uses:{}", escape(id.as_str())),
        };
        format!("{}+{part}:{name}", self.head)
    }

    /// `KIND:ID` of a spelled key: what it is called inside this keyspace.
    pub(crate) fn name<'a>(&self, spelled: &'a str) -> &'a str {
        spelled.strip_prefix(&self.head).unwrap_or(spelled)
    }

    /// The spelled key of a name.
    pub(crate) fn spell_name(&self, name: &str) -> String {
        format!("{}{name}", self.head)
    }

    /// What `text` names.
    pub fn parse(&self, text: &str) -> Spelled {
        let Some(rest) = text.strip_prefix(&self.head) else {
            return Spelled::Elsewhere;
        };
        let Some((kind, id)) = rest.split_once(':') else {
            return Spelled::Malformed;
        };
        let key = match kind {
            HEALTH => unescape(id).map(|id| Key::Health(ConnectionId::new(id))),
            LOCKOUT => unescape(id).map(|id| Key::Lockout(ConnectionId::new(id))),
            LANE => unescape(id).map(|id| Key::Lane(ConnectionId::new(id))),
            BREAKER => unescape(id).map(|id| Key::Breaker(ProviderId::new(id))),
            GATE => unescape(id).map(|id| Key::Gate(ProviderId::new(id))),
            TOOLS => unescape(id).map(|id| Key::Tools(ProviderId::new(id))),
            LEASE => unescape(id).map(|id| Key::Lease(id.into())),
            BOUND => unescape(id).map(|id| Key::Bound(ConnectionId::new(id))),
            PIN => unescape(id).map(|id| Key::Pin(id.into())),
            TOKEN => unescape(id).map(|id| Key::Token(ConnectionId::new(id))),
            REFRESH => unescape(id).map(|id| Key::Refresh(ConnectionId::new(id))),
            EGRESS => unescape(id).map(|id| Key::Egress(id.into())),
            LEADER => (id == LEADER_ID).then_some(Key::Leader),
            SETTINGS => (id == SETTINGS_ID).then_some(Key::Settings),
            _ => Key::other_spelled(kind, id),
        };
        key.map_or(Spelled::Malformed, Spelled::Key)
    }
}

/// Which of a pool's sets; what is in them is told in `redis/scripts/take_1.lua`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PoolPart {
    Held,
    Queue,
    Patience,
    Notes,
}

/// What a stored key's text turns out to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spelled {
    /// One of ours, known kind or not.
    Key(Key),
    /// Under our prefix, but nothing we would write.
    Malformed,
    /// Under another prefix: none of our business.
    Elsewhere,
}

fn escape(text: &str) -> String {
    let mut spelled = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'~' | b'-') {
            spelled.push(char::from(byte));
        } else {
            // Writing to a String does not fail.
            write!(spelled, "%{byte:02X}").ok();
        }
    }
    spelled
}

/// The text that [`escape`] makes `spelled` of, if there is one.
fn unescape(spelled: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(spelled.len());
    let mut rest = spelled;
    while let Some((before, after)) = rest.split_once('%') {
        bytes.extend_from_slice(before.as_bytes());
        bytes.push(u8::from_str_radix(after.get(..2)?, 16).ok()?);
        rest = after.get(2..)?;
    }
    bytes.extend_from_slice(rest.as_bytes());
    let text = String::from_utf8(bytes).ok()?;
    // One spelling each: `%41`, `%2f` and an unescaped `/` are nobody's.
    (escape(&text) == spelled).then_some(text)
}

#[cfg(test)]
mod tests;
