//! Which codes reach clients, and what is told of whose fault.

use shared_proto::classify::{TransportFailure, transport_failure};
use shared_proto::failure::{Blame, ErrorType, Failure, Reason};
use shared_proto::protocol::Protocol;

use super::{OWN_CODES, is_fit, tell};

fn failure(status: u16, reason: Reason, blame: Blame) -> Failure {
    Failure {
        status,
        reason,
        blame,
        error_type: None,
        upstream_code: None,
        ..transport_failure(TransportFailure::Reset)
    }
}

#[test]
fn codes_of_upstreams_are_words_and_never_ours() {
    assert!(OWN_CODES.is_sorted());
    for fit in [
        "bad_colour",
        "content_filter",
        "their-own-code",
        "a.b",
        "x1",
    ] {
        assert!(is_fit(fit), "{fit}");
    }
    let long = "x".repeat(65);
    let unfit = [
        "",
        "LEASE_LOST",
        "Bad",
        "429",
        "1302",
        "about:blank",
        "a b",
        "_a",
        "é",
        &long,
        "[redacted]",
        "rate_limit_exceeded",
        "no_executable_targets",
        "invalid_api_key",
    ];
    for unfit in unfit {
        assert!(!is_fit(unfit), "{unfit}");
        let failure = Failure {
            upstream_code: Some(unfit.to_owned()),
            ..failure(422, Reason::Unknown, Blame::Request)
        };
        let told = tell(&failure, Protocol::ChatCompletions);
        assert_eq!(
            (told.status, told.code.as_str()),
            (422, "upstream_rejected_request")
        );
    }
}

#[test]
fn a_request_at_fault_is_never_told_to_come_back() {
    for reason in [
        Reason::RateLimitExceeded,
        Reason::QuotaExhausted,
        Reason::Unknown,
    ] {
        for status in [400, 402, 413, 429] {
            let told = tell(&failure(status, reason, Blame::Request), Protocol::Messages);
            assert!(
                matches!(told.status, 400..=403 | 413),
                "{reason:?} {status}: {told:?}"
            );
        }
    }
}

#[test]
fn a_block_by_a_machine_in_between_has_a_code_of_its_own() {
    let blocked = Failure {
        error_type: Some(ErrorType::FingerprintRejection),
        ..failure(403, Reason::AuthError, Blame::Provider)
    };
    let told = tell(&blocked, Protocol::Responses);
    assert_eq!((told.status, told.code.as_str()), (503, "upstream_blocked"));
}
