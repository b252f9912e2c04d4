//! Failures of an attempt that come from its tokens rather than from what the
//! upstream answered.

use crate::failure::{Blame, Cooldown, ErrorType, Failure, Reason, Terminal};

/// The rule of [`refused`].
pub const REFUSED_RULE: &str = "token-refresh-refused";
/// The rule of [`cannot_renew`].
pub const CANNOT_RENEW_RULE: &str = "token-not-renewed";

/// Bounds of the rest of a connection whose token can't be renewed now, in ms.
const REST_MS: (u64, u64) = (1_000, 60_000);

/// The token endpoint refused the refresh token: only a new login helps.
pub fn refused(code: &str) -> Failure {
    Failure {
        status: 401,
        error_type: Some(ErrorType::Unauthorized),
        terminal: Some(Terminal::Expired),
        cooldown: Cooldown::None,
        rule: REFUSED_RULE.to_owned(),
        message: format!(
            "the token endpoint refused the refresh token ({code}); the account needs a new login"
        ),
        ..base()
    }
}

/// The access token has ended and can't be renewed for another `wait_ms`.
/// Nothing was sent.
pub fn cannot_renew(wait_ms: u64) -> Failure {
    Failure {
        cooldown: Cooldown::Fixed(wait_ms.clamp(REST_MS.0, REST_MS.1)),
        ..base()
    }
}

fn base() -> Failure {
    Failure {
        status: 503,
        reason: Reason::AuthError,
        blame: Blame::Connection,
        error_type: Some(ErrorType::OauthInvalidToken),
        fallback: true,
        terminal: None,
        cooldown: Cooldown::Ladder,
        hint: None,
        client_retry_after_ms: None,
        counts_for_breaker: false,
        rule: CANNOT_RENEW_RULE.to_owned(),
        restated: None,
        upstream_code: None,
        message: "the access token has ended and can't be renewed now".to_owned(),
    }
}

/// Whether a failure may come from an access token that is not good any more.
pub fn may_be_stale(failure: &Failure) -> bool {
    let refused = matches!(
        failure.error_type,
        Some(ErrorType::Unauthorized | ErrorType::OauthInvalidToken)
    );
    refused && failure.blame == Blame::Connection
}

/// What a refusal means where nobody could find out whether a new access token
/// would have been taken: not the end of the account.
pub fn soften(failure: &mut Failure) {
    if failure.terminal == Some(Terminal::Expired) {
        failure.terminal = None;
        failure.cooldown = Cooldown::Ladder;
        failure.error_type = Some(ErrorType::OauthInvalidToken);
    }
}
