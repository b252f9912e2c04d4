//! OAuth tokens of accounts: when they are refreshed, by whom, and how they are
//! stored.
//!
//! An account that is configured with a refresh token has a *line* in the record
//! [`StoredTokens`] of its connection: its tokens, sealed ([`seal`]), and their
//! generation, which rises with each refresh. A line belongs to the credential
//! as the operator wrote it (its [`mark`]); another credential in the
//! configuration is another line, so that it wins over what is stored, and a
//! node that has not read the new configuration yet does no harm.
//!
//! # One refresh in the cluster
//!
//! Whoever wants to refresh reads both records, asks [`judge`], and takes the
//! [`RefreshLock`] by compare-and-set, guarded by the tokens as it read them
//! ([`take`]). Only then is the refresh token spent, and what came of it is
//! written by [`settle`]:
//!
//! - A grant is written whatever has become of the lock, as long as nobody has
//!   written a newer generation: it may hold the only refresh token that is
//!   left. It is used only once it is stored.
//! - A refusal or a failure is written only under the lock, over the very line
//!   that was spent. So a node that was slow says nothing about tokens that
//!   another one has replaced.
//!
//! The lock lapses with [`LOCK_MS`], which is more than a call may take. A node
//! that dies after the token endpoint answered and before the grant is stored
//! takes the answer with it: the next one spends the same refresh token once
//! more after the lock has lapsed. An endpoint that rotates strictly refuses it
//! then, and the account needs a new login; nobody but the endpoint could tell.
//!
//! A store that goes back to an older state is told again by whoever knows the
//! newer line ([`restore`]).

mod endpoint;
mod failure;
mod grant;
mod judge;
mod record;
mod seal;
mod settle;
#[cfg(test)]
mod tests;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use crate::clock::Millis;
use crate::id::ConnectionId;

pub use endpoint::{ClientAuth, GrantBody, TokenEndpoint};
pub use failure::{CANNOT_RENEW_RULE, REFUSED_RULE, cannot_renew, may_be_stale, refused, soften};
pub use grant::{Answer, GrantRequest, MAX_TOKEN_BYTES, read_answer, request};
pub use judge::{Ask, Cause, Judgement, due_at, judge, rest_ms};
pub use record::{Line, RefreshLock, Sealed, Status, StoredTokens, Trouble};
pub use seal::{Keyring, Nonce, Place, SealError};
pub use settle::{End, Read, Seen, Settle, Spent, Unusable, restore, settle, take};

/// A refresh begins this long before the access token ends, in ms, or a fifth
/// of its life where that is less.
pub const LEAD_MS: u64 = 300_000;

/// Longest call to a token endpoint, connecting included, in ms.
pub const CALL_MS: u64 = 10_000;

/// How long the lock on refreshing is held at most, in ms; more than
/// [`CALL_MS`] and the commit after it.
pub const LOCK_MS: u64 = 15_000;

/// An access token this young, in ms, that is refused is not refreshed again:
/// the refusal means something else.
pub const FRESH_MS: u64 = 10_000;

/// Lines of one connection's record; past it the one that was written longest
/// ago goes.
pub const MAX_LINES: usize = 4;

/// What an account proves itself with, in the clear: in memory only.
#[derive(Clone, Debug)]
pub struct Tokens {
    /// Sent as a bearer.
    pub access: SecretString,
    /// Spent for the next pair.
    pub refresh: SecretString,
}

/// Tells credentials of a connection apart without keeping them: the first
/// eight bytes of a hash over its name and both tokens as configured.
pub fn mark(connection: &ConnectionId, configured: &Tokens) -> u64 {
    let mut hash = Sha256::new();
    hash.update(connection.as_str().as_bytes());
    for token in [&configured.access, &configured.refresh] {
        hash.update([0]);
        hash.update(token.expose_secret().as_bytes());
    }
    let digest: [u8; 32] = hash.finalize().into();
    let mut first = [0; 8];
    first.copy_from_slice(digest.get(..8).unwrap_or(&[0; 8]));
    u64::from_be_bytes(first)
}

/// When an access token ends by its own words, if it is a JWT that says so. Its
/// signature is the upstream's business.
pub fn told_expiry(access: &SecretString) -> Option<Millis> {
    #[derive(Deserialize)]
    struct Claims {
        exp: f64,
    }
    let mut parts = access.expose_secret().split('.');
    let (_, claims, _) = (parts.next()?, parts.next()?, parts.next()?);
    let claims = URL_SAFE_NO_PAD.decode(claims).ok()?;
    let Claims { exp } = serde_json::from_slice(&claims).ok()?;
    grant::seconds(exp).map(Millis::from_epoch_ms)
}
