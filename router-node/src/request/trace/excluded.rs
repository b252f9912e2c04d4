//! Candidates that were not tried.

use std::sync::Arc;

use serde::{Serialize, Serializer};
use shared_proto::clock::Millis;
use shared_proto::id::{ConnectionId, ProviderId};
use shared_proto::pick::ExclusionReason;

use crate::request::resolve::Target;

/// A candidate that was not tried.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Excluded {
    pub(crate) provider: ProviderId,
    /// Absent when it is about the provider as a whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) connection: Option<ConnectionId>,
    pub(crate) model: Arc<str>,
    pub(crate) reason: ExclusionReason,
    /// When it ends, RFC 3339, for those that end by themselves.
    #[serde(serialize_with = "rfc3339", skip_serializing_if = "Option::is_none")]
    pub(crate) until: Option<Millis>,
    /// More on what is not a timer, such as `expired` or `protocol_not_offered`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) detail: Option<&'static str>,
}

impl Excluded {
    /// A target that can't serve this request, whatever its state.
    pub(in crate::request) fn unavailable(target: &Target, detail: &'static str) -> Self {
        let connection = target.connection.as_ref();
        Self {
            provider: target.provider.provider.id.clone(),
            connection: connection.map(|slot| slot.connection.id.clone()),
            model: Arc::clone(&target.model),
            reason: ExclusionReason::Unavailable,
            until: None,
            detail: Some(detail),
        }
    }
}

#[expect(clippy::ref_option, reason = "serde passes the field by reference")]
fn rfc3339<S: Serializer>(until: &Option<Millis>, serializer: S) -> Result<S::Ok, S::Error> {
    until.map(Millis::to_rfc3339).serialize(serializer)
}
