//! A limit of an address, from the refusal to what siblings are told.

use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::classify::{self, ClassifyRules, UpstreamError};
use crate::clock::Millis;
use crate::failure::{Blame, Cooldown, Failure, HintSource, Reason};
use crate::health::{Blocked, ConnectionHealth};
use crate::id::ConnectionId;

/// How long a connection rests for a limit that says nothing of its length, ms.
const UNTOLD_MS: u64 = 120_000;

/// Where a connection leaves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// The family of providers whose limits count there.
    pub family: Arc<str>,
    /// The address.
    pub address: IpAddr,
}

/// Why a connection rests: a limit of its address. Part of its health.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// Where.
    pub exit: Exit,
    /// Who met it; the connection itself, or a sibling.
    pub met_by: ConnectionId,
    /// When it was counted.
    pub at: Millis,
}

/// A limit that an address is under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Where.
    pub exit: Exit,
    /// Who met it.
    pub met_by: ConnectionId,
    /// When it was counted.
    pub at: Millis,
    /// Until when it holds.
    pub until: Millis,
    /// Of which kind it is.
    pub reason: Reason,
    /// Where its end was announced, if it was.
    pub hint_source: Option<HintSource>,
}

impl Limit {
    /// The limit that `health` rests for at `now`, if it is one.
    pub fn of(health: &ConnectionHealth, now: Millis) -> Option<Self> {
        let mark = health.egress.as_ref()?;
        let Err(Blocked::Cooling { until }) = health.eligible(now) else {
            return None;
        };
        Some(Self {
            exit: mark.exit.clone(),
            met_by: mark.met_by.clone(),
            at: mark.at,
            until,
            reason: health.last_error.as_ref()?.reason,
            hint_source: health.hint_source,
        })
    }

    /// What its siblings' health says of it.
    pub(crate) fn mark(&self) -> Mark {
        Mark {
            exit: self.exit.clone(),
            met_by: self.met_by.clone(),
            at: self.at,
        }
    }
}

/// Whether `failure` may be a limit of the address: a plain 429, nothing final,
/// of an account or one of its models. Where a rule says itself what a refusal
/// is charged to, it holds.
pub fn is_limit(failure: &Failure, error: &UpstreamError<'_>) -> bool {
    failure.status == 429
        && matches!(
            failure.reason,
            Reason::QuotaExhausted | Reason::RateLimitExceeded
        )
        && failure.terminal.is_none()
        && matches!(failure.blame, Blame::Connection | Blame::Model)
        && !classify::names_scope(&failure.rule, error.reading)
}

/// Charges a limit to the address of a connection in a family: quotas by model
/// play no part there. `known` says whether the address is; otherwise the
/// connection is charged. What is something else stays as it is and is `Err`.
pub fn charged(
    failure: Failure,
    error: &UpstreamError<'_>,
    rules: &ClassifyRules<'_>,
    (known, now): (bool, Millis),
) -> Result<Failure, Failure> {
    if !is_limit(&failure, error) {
        return Err(failure);
    }
    let mut limit = if failure.blame == Blame::Model {
        let of_account = UpstreamError {
            per_model_quota: false,
            ..*error
        };
        classify::classify(&of_account, rules, now)
    } else {
        failure.clone()
    };
    if limit.blame != Blame::Connection || !is_limit(&limit, error) {
        // It speaks of the model itself, or of a relay's own account.
        return Err(failure);
    }
    if known {
        limit.blame = Blame::EgressIp;
    }
    if limit.cooldown == Cooldown::None {
        limit.cooldown = Cooldown::Fixed(UNTOLD_MS);
    }
    Ok(limit)
}
