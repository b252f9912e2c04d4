//! What clients send and are answered: headers, actions, answers.

use serde::{Deserialize, Serialize};

use super::code::LeaseCode;
use super::record::{EndReason, Lease};
use super::token::{Generation, OwnerHash, OwnerToken};
use crate::clock::Millis;

/// Longest model of an acquire, in characters.
pub const MAX_MODEL_CHARS: usize = 512;

/// What a client asks of the lifecycle endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// A lease on a connection that can serve this model.
    Acquire {
        /// Trimmed, 1-512 characters.
        model: String,
    },
    /// To last longer.
    Renew {
        /// Which lease.
        generation: Generation,
    },
    /// To give it back.
    Release {
        /// Which lease.
        generation: Generation,
        /// [`EndReason::OwnerExit`] or [`EndReason::ClientCancelled`].
        reason: EndReason,
    },
    /// To be told what it is.
    Status {
        /// Which lease.
        generation: Generation,
    },
}

#[derive(Deserialize)]
#[serde(tag = "action", rename_all = "lowercase")]
enum Sent {
    Acquire {
        model: String,
    },
    Renew {
        generation: Generation,
    },
    Release {
        generation: Generation,
        #[serde(default)]
        reason: SentReason,
    },
    Status {
        generation: Generation,
    },
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
enum SentReason {
    #[default]
    OwnerExit,
    ClientCancelled,
}

/// Reads the request of the lifecycle endpoint, after authentication and
/// before anything else: [`LeaseCode::ContentTypeRequired`], then
/// [`LeaseCode::ActionInvalid`]. Fields that no action has are ignored.
pub fn action(content_type: Option<&[u8]>, body: &[u8]) -> Result<Action, LeaseCode> {
    if !content_type.is_some_and(is_json) {
        return Err(LeaseCode::ContentTypeRequired);
    }
    let sent = serde_json::from_slice(body).map_err(|_| LeaseCode::ActionInvalid)?;
    Ok(match sent {
        Sent::Acquire { model } => {
            let model = model.trim();
            if model.is_empty() || model.chars().count() > MAX_MODEL_CHARS {
                return Err(LeaseCode::ActionInvalid);
            }
            Action::Acquire {
                model: model.to_owned(),
            }
        }
        Sent::Renew { generation } => Action::Renew { generation },
        Sent::Release { generation, reason } => Action::Release {
            generation,
            reason: match reason {
                SentReason::OwnerExit => EndReason::OwnerExit,
                SentReason::ClientCancelled => EndReason::ClientCancelled,
            },
        },
        Sent::Status { generation } => Action::Status { generation },
    })
}

fn is_json(content_type: &[u8]) -> bool {
    let media = content_type
        .split(|b| *b == b';')
        .next()
        .unwrap_or_default();
    media.trim_ascii().eq_ignore_ascii_case(b"application/json")
}

/// Whether a key may have leases, after the ordinary key policy:
/// [`LeaseCode::ScopeRequired`], then [`LeaseCode::KeyConfigurationInvalid`].
/// On inference the second alone applies, and only to managed keys.
pub const fn managed(has_scope: bool, allowed_connections: usize) -> Result<(), LeaseCode> {
    if !has_scope {
        Err(LeaseCode::ScopeRequired)
    } else if allowed_connections == 0 {
        Err(LeaseCode::KeyConfigurationInvalid)
    } else {
        Ok(())
    }
}

/// The owner header: [`LeaseCode::ContextRequired`] when it is absent or
/// blank, [`LeaseCode::ContextInvalid`] when it is no token.
pub fn owner(header: Option<&[u8]>) -> Result<OwnerHash, LeaseCode> {
    match header {
        Some(value) if !value.trim_ascii().is_empty() => OwnerToken::parse(value)
            .map(OwnerToken::hash)
            .ok_or(LeaseCode::ContextInvalid),
        Some(_) | None => Err(LeaseCode::ContextRequired),
    }
}

/// Both headers of a managed request: as for [`owner`], and
/// [`LeaseCode::ContextInvalid`] when the generation is absent or none.
pub fn context(
    owner_header: Option<&[u8]>,
    generation: Option<&[u8]>,
) -> Result<(OwnerHash, Generation), LeaseCode> {
    let owner = owner(owner_header)?;
    let generation = generation.and_then(Generation::parse);
    Ok((owner, generation.ok_or(LeaseCode::ContextInvalid)?))
}

/// The JSON of a lease: these fields and no others, so neither connection nor
/// key nor owner.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LeaseAnswer {
    state: &'static str,
    generation: Generation,
    acquired_at: String,
    renewed_at: String,
    expires_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    connection: Option<ConnectionLabel>,
}

/// What `status` tells of the connection.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConnectionLabel {
    /// The operator's name for it; nothing made up, and no address.
    pub display_name: Option<String>,
    /// The provider, in words.
    pub provider: String,
}

impl Lease {
    /// What its owner is told of it. `connection` is for `status` only.
    pub fn answer(&self, now: Millis, connection: Option<ConnectionLabel>) -> LeaseAnswer {
        LeaseAnswer {
            state: self.state(now).as_str(),
            generation: self.generation,
            acquired_at: self.acquired_at.to_rfc3339(),
            renewed_at: self.renewed_at.to_rfc3339(),
            expires_at: self.expires_at.to_rfc3339(),
            connection,
        }
    }
}
