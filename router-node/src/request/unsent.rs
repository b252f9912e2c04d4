//! Attempts that got no answer at all.

use shared_proto::classify::{self, TransportFailure};

use super::dispatch::Failed;
use crate::upstream::{ProxyFault, SendError};

/// What became of a call that has no answer.
pub(super) fn unsent(error: SendError) -> Failed {
    let kind = match error {
        SendError::ConnectFailed => TransportFailure::ConnectFailed,
        SendError::ConnectTimeout => TransportFailure::ConnectTimeout,
        SendError::Proxy(ProxyFault::Unreachable) => TransportFailure::ProxyUnreachable,
        SendError::Proxy(ProxyFault::Login) => TransportFailure::ProxyLogin,
        SendError::Proxy(ProxyFault::Refused) => TransportFailure::ProxyRefused,
        SendError::Proxy(ProxyFault::Garbage) => TransportFailure::ProxyGarbage,
        SendError::HeadersTimeout => TransportFailure::HeadersTimeout,
        SendError::HeadTooLarge => TransportFailure::HeadTooLarge,
        SendError::NotHttp => TransportFailure::NotHttp,
        SendError::Stale | SendError::Reset => TransportFailure::Reset,
    };
    Failed {
        stale: matches!(error, SendError::Stale),
        ..transport(kind)
    }
}

/// The way to the provider failed.
pub(super) fn transport(kind: TransportFailure) -> Failed {
    Failed {
        status: None,
        failure: classify::transport_failure(kind),
        stale: false,
    }
}
