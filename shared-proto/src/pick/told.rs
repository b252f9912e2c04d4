//! Of which failure a client is told where several attempts failed.

use std::cmp::Reverse;

use crate::failure::{Blame, ErrorType, Failure, Reason};

/// What kinds of failures are told first, whatever the order of the attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// The request's own fault: nobody else was asked.
    Final,
    /// A limit or quota that ends by itself.
    Limit,
    /// A passing trouble of the upstream or of the way to it.
    Passing,
    /// The request does not fit where it was tried; another one may.
    Request,
    /// The model is not there, or not for these accounts.
    Model,
    /// The account, its credential or our address was refused, without an end.
    Account,
}

impl Class {
    /// The class of `failure`.
    pub fn of(failure: &Failure) -> Self {
        if !failure.fallback {
            return Self::Final;
        }
        if failure.terminal.is_some() {
            return Self::Account;
        }
        if failure.blame == Blame::Request {
            return Self::Request;
        }
        match (failure.error_type, failure.reason) {
            (Some(ErrorType::ModelNotFound), _) | (_, Reason::NotFound) => Self::Model,
            (_, Reason::AuthError) if failure.blame == Blame::Model => Self::Model,
            (
                Some(
                    ErrorType::GeoBlocked
                    | ErrorType::FingerprintRejection
                    | ErrorType::ProjectRouteError,
                ),
                _,
            )
            | (_, Reason::AuthError) => Self::Account,
            (_, Reason::RateLimitExceeded | Reason::QuotaExhausted) => Self::Limit,
            (
                _,
                Reason::ModelCapacity
                | Reason::ServerError
                | Reason::ServiceNotRunning
                | Reason::Unknown,
            ) => Self::Passing,
        }
    }

    /// Whether waiting helps: the client may come back with the same request.
    pub const fn passes(self) -> bool {
        matches!(self, Self::Limit | Self::Passing)
    }
}

/// Where the failure that is told stands among `failures`; the smallest place
/// of several that read the same. `None` where there is none.
///
/// Of one class the one that ends first is told, and of those the same one
/// whatever the order.
pub fn told<'a>(failures: impl Iterator<Item = (usize, &'a Failure)>) -> Option<usize> {
    let least = failures.min_by_key(|(place, failure)| {
        let wait = failure.client_retry_after_ms;
        (
            Class::of(failure),
            // One that says when it ends goes before one that does not.
            wait.is_none(),
            wait,
            Reverse(failure.status),
            failure.rule.as_str(),
            failure.message.as_str(),
            *place,
        )
    });
    least.map(|(place, _)| place)
}
