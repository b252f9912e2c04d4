//! What is stored of a lease: the owner's record and the connection's.

use serde::{Deserialize, Serialize};

use super::token::{Generation, LeaseId, OwnerHash};
use crate::clock::Millis;
use crate::id::{ApiKeyId, ConnectionId, ProviderId};

use crate::mirror::key::{self, Key};
use crate::mirror::record::Body;

/// How long an owner's record is kept after its lease ended, ms: a release can
/// be repeated, and the generation is known, for a day.
pub const KEEP_ENDED_MS: u64 = 24 * 60 * 60 * 1000;

/// How long a connection's record is kept after its lease is over, ms. More
/// than any grace (`MAX_HANDOVER_GRACE_MS`) and any time a commit is under way.
pub const KEEP_BOUND_MS: u64 = 10 * 60 * 1000;

/// An owner's newest lease. One record an owner, under [`OwnerHash::key`].
///
/// While it is active its record expires with it, so that a guard on the
/// record is the fence.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Lease {
    /// Which of the owner's leases. A transition keeps it.
    pub generation: Generation,
    /// The API key it was granted to.
    pub api_key: ApiKeyId,
    /// The provider of the connection.
    pub provider: ProviderId,
    /// The one connection it binds.
    pub connection: ConnectionId,
    /// When this binding was made.
    pub acquired_at: Millis,
    /// When it was last made to last longer.
    pub renewed_at: Millis,
    /// The first moment it is no longer active by itself.
    pub expires_at: Millis,
    /// How it ended; `None` while nobody has written an end.
    #[serde(default)]
    pub end: Option<End>,
}

/// Which lease a connection is bound by, or was last. One record a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Bound {
    /// Whose lease.
    pub owner: OwnerHash,
    /// Which lease of that owner.
    pub generation: Generation,
    /// As [`Lease::expires_at`].
    pub expires_at: Millis,
    /// How the binding ended; `None` while nobody has written an end.
    #[serde(default)]
    pub end: Option<End>,
}

/// The end of a lease, or of its binding to one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct End {
    /// Why.
    pub reason: EndReason,
    /// When, by whoever ended it.
    pub at: Millis,
}

/// Why a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum EndReason {
    /// The owner is done.
    OwnerExit,
    /// The owner's work was cancelled.
    ClientCancelled,
    /// Nobody renewed it.
    TtlExpired,
    /// The connection is no longer eligible for the owner's requests.
    ConnectionIneligible,
    /// The connections cool.
    HealthOrCooldown,
    /// The model is locked on every connection.
    ModelIneligible,
    /// The quotas are used up.
    QuotaUnavailable,
    /// The connections' own credentials are no longer good.
    AuthorizationChanged,
    /// The API key is gone or no longer managed, or an operator revoked it.
    ManagedKeyRevoked,
}

impl EndReason {
    /// The word that is stored and shown.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OwnerExit => "OWNER_EXIT",
            Self::ClientCancelled => "CLIENT_CANCELLED",
            Self::TtlExpired => "TTL_EXPIRED",
            Self::ConnectionIneligible => "CONNECTION_INELIGIBLE",
            Self::HealthOrCooldown => "HEALTH_OR_COOLDOWN",
            Self::ModelIneligible => "MODEL_INELIGIBLE",
            Self::QuotaUnavailable => "QUOTA_UNAVAILABLE",
            Self::AuthorizationChanged => "AUTHORIZATION_CHANGED",
            Self::ManagedKeyRevoked => "MANAGED_KEY_REVOKED",
        }
    }

    /// The state a lease is in that ended so.
    pub const fn state(self) -> LeaseState {
        match self {
            Self::OwnerExit | Self::ClientCancelled => LeaseState::Released,
            Self::TtlExpired => LeaseState::Expired,
            Self::ConnectionIneligible
            | Self::HealthOrCooldown
            | Self::ModelIneligible
            | Self::QuotaUnavailable
            | Self::AuthorizationChanged
            | Self::ManagedKeyRevoked => LeaseState::Invalidated,
        }
    }
}

/// What a lease is at a given time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LeaseState {
    /// It binds its connection.
    Active,
    /// Its owner gave it back.
    Released,
    /// Nobody renewed it in time.
    Expired,
    /// Routing or an operator ended it.
    Invalidated,
}

impl LeaseState {
    /// The word that clients read.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "ACTIVE",
            Self::Released => "RELEASED",
            Self::Expired => "EXPIRED",
            Self::Invalidated => "INVALIDATED",
        }
    }
}

fn state(end: Option<End>, expires_at: Millis, now: Millis) -> LeaseState {
    match end {
        Some(end) => end.reason.state(),
        None if expires_at <= now => LeaseState::Expired,
        None => LeaseState::Active,
    }
}

impl Lease {
    /// What it is at `now`; that its time ran out needs no event.
    pub fn state(&self, now: Millis) -> LeaseState {
        state(self.end, self.expires_at, now)
    }

    /// Whether it binds its connection at `now`.
    pub fn is_active(&self, now: Millis) -> bool {
        self.state(now) == LeaseState::Active
    }

    /// How an operator names it.
    pub fn id(&self, owner: &OwnerHash) -> LeaseId {
        LeaseId {
            owner: owner.clone(),
            generation: self.generation,
        }
    }

    /// The same, ended.
    #[must_use]
    pub(super) fn ended(&self, end: End) -> Self {
        Self {
            end: Some(end),
            ..self.clone()
        }
    }

    /// When its record stops meaning anything.
    pub(super) const fn record_expires_at(&self) -> Millis {
        match self.end {
            Some(end) => end.at.plus(KEEP_ENDED_MS),
            None => self.expires_at,
        }
    }
}

impl Bound {
    /// Whether it binds the connection at `now`.
    pub fn is_active(&self, now: Millis) -> bool {
        state(self.end, self.expires_at, now) == LeaseState::Active
    }

    /// Whether it is the binding made by that lease.
    pub fn is_of(&self, owner: &OwnerHash, generation: Generation) -> bool {
        self.owner == *owner && self.generation == generation
    }

    /// Since when it no longer binds, if so at `now`. `written_at` is when the
    /// store took the record: who ended it may have judged a little earlier.
    pub fn over_since(&self, written_at: Millis, now: Millis) -> Option<Millis> {
        match self.end {
            Some(end) if end.reason.state() == LeaseState::Expired => Some(end.at),
            Some(end) => Some(end.at.max(written_at)),
            None => (self.expires_at <= now).then_some(self.expires_at),
        }
    }

    /// The same, ended.
    #[must_use]
    pub(super) fn ended(&self, end: End) -> Self {
        Self {
            end: Some(end),
            ..self.clone()
        }
    }

    /// When its record stops meaning anything.
    pub(super) fn record_expires_at(&self) -> Millis {
        let over = self.end.map_or(self.expires_at, |end| end.at);
        over.plus(KEEP_BOUND_MS)
    }
}

impl Body for Lease {
    const KIND: &'static str = key::LEASE;
    const VERSION: u16 = 1;
}

impl Body for Bound {
    const KIND: &'static str = key::BOUND;
    const VERSION: u16 = 1;
}

/// Whose record of leases a key names; the other kinds are nothing to them.
pub(super) enum Subject<'k> {
    /// [`Lease`]'s.
    Owner(OwnerHash),
    /// [`Bound`]'s.
    Connection(&'k ConnectionId),
}

impl<'k> Subject<'k> {
    pub(super) fn of(key: &'k Key) -> Option<Self> {
        match key {
            Key::Lease(hash) => OwnerHash::parse(hash).map(Self::Owner),
            Key::Bound(connection) => Some(Self::Connection(connection)),
            Key::Health(_)
            | Key::Lockout(_)
            | Key::Lane(_)
            | Key::Tools(_)
            | Key::Breaker(_)
            | Key::Gate(_)
            | Key::Pin(_)
            | Key::Token(_)
            | Key::Refresh(_)
            | Key::Egress(_)
            | Key::Leader
            | Key::Settings
            | Key::Other(_) => None,
        }
    }
}
