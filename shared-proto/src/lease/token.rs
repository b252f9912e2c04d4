//! Who owns a lease, and which lease of its owner is meant.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::clock::Millis;
use crate::mirror::key::Key;

/// What every owner token begins with.
const PREFIX: &str = "vlo_";
/// Characters after the prefix: 32 bytes as base64url without padding.
const TOKEN_CHARS: usize = 43;
/// Characters of a hash: 32 bytes as hex.
const HASH_CHARS: usize = 64;

/// An owner's token as the client sent it. A secret: it can't be shown,
/// and only its hash is ever kept.
#[derive(Clone, Copy)]
pub struct OwnerToken<'a>(&'a str);

impl<'a> OwnerToken<'a> {
    /// Reads a header's value; white space around it does not count.
    /// `None` unless it is `vlo_` and 43 characters of base64url.
    pub fn parse(header: &'a [u8]) -> Option<Self> {
        let text = std::str::from_utf8(header.trim_ascii()).ok()?;
        let random = text.strip_prefix(PREFIX)?;
        let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
        (random.len() == TOKEN_CHARS && random.bytes().all(plain)).then_some(Self(text))
    }

    /// What it is known by.
    pub fn hash(self) -> OwnerHash {
        use fmt::Write as _;
        let mut hex = String::with_capacity(HASH_CHARS);
        for byte in Sha256::digest(self.0) {
            // Writing to a String does not fail.
            write!(hex, "{byte:02x}").ok();
        }
        OwnerHash(hex.into())
    }
}

/// An owner as it is stored: SHA-256 of the whole token, in lower-case hex.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct OwnerHash(Arc<str>);

impl OwnerHash {
    /// Reads 64 lower-case hex digits; `None` for anything else.
    pub fn parse(hex: &str) -> Option<Self> {
        let is_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        (hex.len() == HASH_CHARS && hex.bytes().all(is_hex)).then(|| Self(hex.into()))
    }

    /// The hex digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The key of the owner's record.
    pub fn key(&self) -> Key {
        Key::Lease(Arc::clone(&self.0))
    }
}

impl TryFrom<String> for OwnerHash {
    type Error = &'static str;

    fn try_from(hex: String) -> Result<Self, Self::Error> {
        Self::parse(&hex).ok_or("not a hash of an owner's token")
    }
}

/// Which lease of its owner: each one granted has a higher generation than
/// all before it. From 1 to 2^53 - 1, so that every client can hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64")]
pub struct Generation(u64);

impl Generation {
    /// The highest there is.
    pub const MAX: Self = Self((1 << 53) - 1);

    /// The generation of this number, if it is one.
    pub const fn new(number: u64) -> Option<Self> {
        if number >= 1 && number <= Self::MAX.0 {
            Some(Self(number))
        } else {
            None
        }
    }

    /// Reads a header's value: decimal digits without sign or leading zero.
    pub fn parse(header: &[u8]) -> Option<Self> {
        let plain = header.first() != Some(&b'0') && header.iter().all(u8::is_ascii_digit);
        let text = std::str::from_utf8(header).ok().filter(|_| plain)?;
        Self::new(text.parse().ok()?)
    }

    /// The one for a lease granted at `now` to an owner whose last was
    /// `previous`. The time keeps it rising even when a store that lost its
    /// last writes no longer knows `previous`. `None` when there is none left.
    pub fn following(previous: Option<Self>, now: Millis) -> Option<Self> {
        let next = previous.map_or(1, |previous| previous.0.saturating_add(1));
        Self::new(next.max(now.as_epoch_ms()))
    }

    /// Its number.
    pub const fn number(self) -> u64 {
        self.0
    }
}

impl TryFrom<u64> for Generation {
    type Error = &'static str;

    fn try_from(number: u64) -> Result<Self, Self::Error> {
        Self::new(number).ok_or("not a generation")
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// How an operator names a lease: `HASH-GENERATION`. The hash tells nothing of
/// the token, which is random; the generation keeps a revocation from hitting
/// a later lease of the same owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseId {
    /// Whose lease.
    pub owner: OwnerHash,
    /// Which one.
    pub generation: Generation,
}

impl LeaseId {
    /// Reads what [`fmt::Display`] writes.
    pub fn parse(text: &str) -> Option<Self> {
        let (owner, generation) = text.split_once('-')?;
        Some(Self {
            owner: OwnerHash::parse(owner)?,
            generation: Generation::parse(generation.as_bytes())?,
        })
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.owner.as_str(), self.generation)
    }
}
