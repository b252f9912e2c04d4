//! The settings of leases.

/// How long a lease lasts unless it is renewed, ms.
pub const DEFAULT_TTL_MS: u64 = 120_000;
/// The shortest a lease may be set to last, ms.
pub const MIN_TTL_MS: u64 = 1_000;
/// The longest a lease may be set to last, ms.
pub const MAX_TTL_MS: u64 = 1_800_000;
/// How long requests in flight hold up the next owner, ms.
pub const DEFAULT_HANDOVER_GRACE_MS: u64 = 2_000;
/// The longest they may be set to, ms.
pub const MAX_HANDOVER_GRACE_MS: u64 = 60_000;

/// The settings of leases, within their bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseRules {
    ttl_ms: u64,
    handover_grace_ms: u64,
    min_replicas: u32,
}

impl LeaseRules {
    /// `leases.ttlMs`, `leases.handoverGraceMs` and `leases.minReplicas`;
    /// what is out of bounds is clamped.
    pub fn new(ttl_ms: u64, handover_grace_ms: u64, min_replicas: u32) -> Self {
        Self {
            ttl_ms: ttl_ms.clamp(MIN_TTL_MS, MAX_TTL_MS),
            handover_grace_ms: handover_grace_ms.min(MAX_HANDOVER_GRACE_MS),
            min_replicas,
        }
    }

    /// How long a lease lasts from its grant or renewal, ms.
    pub const fn ttl_ms(&self) -> u64 {
        self.ttl_ms
    }

    /// How long requests in flight hold up the next owner after the end of a
    /// lease, and how long they may go on unconfirmed, ms.
    pub const fn handover_grace_ms(&self) -> u64 {
        self.handover_grace_ms
    }

    /// How many replicas have to have a grant or renewal.
    pub const fn min_replicas(&self) -> u32 {
        self.min_replicas
    }
}

impl Default for LeaseRules {
    fn default() -> Self {
        Self::new(DEFAULT_TTL_MS, DEFAULT_HANDOVER_GRACE_MS, 0)
    }
}
