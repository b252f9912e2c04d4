//! Which failure is told does not depend on the order of the attempts.

use crate::classify::{TransportFailure, transport_failure};
use crate::failure::{Blame, Cooldown, ErrorType, Failure, Reason, Terminal};
use crate::pick::told::{Class, told};

fn failure(status: u16, reason: Reason, message: &str) -> Failure {
    Failure {
        status,
        reason,
        error_type: None,
        blame: Blame::Connection,
        cooldown: Cooldown::Ladder,
        message: message.to_owned(),
        ..transport_failure(TransportFailure::Reset)
    }
}

/// From what is told first to what is told last.
fn ranked() -> Vec<Failure> {
    let limit = |wait| Failure {
        client_retry_after_ms: wait,
        ..failure(429, Reason::RateLimitExceeded, "limit")
    };
    let of = |blame, failure| Failure { blame, ..failure };
    vec![
        Failure {
            fallback: false,
            ..of(Blame::Request, failure(400, Reason::Unknown, "bad"))
        },
        limit(Some(1_000)),
        limit(Some(2_000)),
        limit(None),
        failure(503, Reason::ServerError, "down"),
        failure(500, Reason::ServerError, "broken"),
        of(Blame::Request, failure(413, Reason::ModelCapacity, "long")),
        Failure {
            error_type: Some(ErrorType::ModelNotFound),
            ..of(Blame::Model, failure(429, Reason::QuotaExhausted, "none"))
        },
        Failure {
            terminal: Some(Terminal::CreditsExhausted),
            ..failure(402, Reason::QuotaExhausted, "broke")
        },
        Failure {
            terminal: Some(Terminal::Expired),
            ..failure(401, Reason::AuthError, "key")
        },
    ]
}

#[test]
fn the_order_of_attempts_does_not_matter() {
    let ranked = ranked();
    for (first, better) in ranked.iter().enumerate() {
        for worse in &ranked[first..] {
            let pick = |list: [&Failure; 2]| {
                let place = told(list.into_iter().enumerate()).unwrap();
                list[place].clone()
            };
            assert_eq!(&pick([better, worse]), better);
            assert_eq!(&pick([worse, better]), better);
        }
    }
    assert_eq!(told(std::iter::empty()), None);
}

#[test]
fn what_passes_is_what_waiting_helps() {
    let passing: Vec<bool> = ranked().iter().map(|f| Class::of(f).passes()).collect();
    let expected = [
        false, true, true, true, true, true, false, false, false, false,
    ];
    assert_eq!(passing, expected);
}
