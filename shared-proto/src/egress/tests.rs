//! The reference's cases by their ids, and what answers and boards mean.

mod wire;

use std::net::IpAddr;

use proptest::prelude::*;

use super::echo::{MAX_ANSWER, read_answer};
use super::*;
use crate::classify::{ClassifyRules, UpstreamError, classify};
use crate::config::{ErrorRule, Reading, Settings};
use crate::failure::{Blame, Cooldown, Failure, Profile, Reason, RuleScope, Terminal};
use crate::health::{ConnectionHealth, HealthEvent, HealthRules, Outcome, SIBLING_RULE};
use crate::hint::Answer;
use crate::id::ConnectionId;
use crate::rotation::RotationRules;

/// 2026-10-01T12:00:00Z.
const T0: Millis = Millis::from_epoch_ms(1_790_856_000_000);
const DAY_MS: u64 = 86_400_000;
const HOUR_MS: u64 = 3_600_000;

const RULES: HealthRules = HealthRules {
    base_ms: 3_000,
    max_steps: 5,
    cap_ms: 1_800_000,
    use_hints: true,
    disable_cooling: false,
    auto_disable_banned: false,
    credential: None,
    rotation: RotationRules::DEFAULT,
};

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn ours() -> IpAddr {
    address("203.0.113.7")
}

fn exit() -> Exit {
    Exit {
        family: "opencode".into(),
        address: ours(),
    }
}

fn seen(address: IpAddr, at: Millis, proxied: bool) -> Observation {
    Observation {
        family: "opencode".into(),
        address,
        at,
        proxied,
    }
}

fn told(seen: &[(&str, Observation)]) -> Observations {
    Observations {
        keep_ms: DAY_MS,
        seen: seen
            .iter()
            .map(|(id, seen)| ((*id).into(), seen.clone()))
            .collect(),
    }
}

fn board(nodes: &[(&str, Observations)]) -> Board {
    let mut board = Board::default();
    for (node, told) in nodes {
        board.set(node, told.clone());
    }
    board
}

/// How a provider's refusal is classified, as of a connection of a family.
fn refusal(status: u16, body: &str, known: bool) -> Result<Failure, Failure> {
    judged(status, body, known, (Reading::default(), &[]))
}

fn judged(
    status: u16,
    body: &str,
    known: bool,
    (reading, provider_rules): (Reading, &[ErrorRule]),
) -> Result<Failure, Failure> {
    let settings = Settings::default();
    let error = UpstreamError {
        answer: Answer {
            provider: "opencode-go",
            status,
            headers: &[],
            body: body.as_bytes(),
        },
        profile: Profile::ApiKey,
        per_model_quota: true,
        reading,
        daily_reset: None,
        model: Some("some-model"),
        in_stream: false,
        asked: None,
    };
    let rules = ClassifyRules {
        hint_bounds: &settings.hint_bounds,
        custom_banned_signals: &[],
        provider_rules,
        restate: &settings.restate_rules,
    };
    let failure = classify(&error, &rules, T0);
    charged(failure, &error, &rules, (known, T0))
}

fn error(message: &str) -> String {
    format!(r#"{{"error": {{"message": "{message}"}}}}"#)
}

/// The health of `id` after it met the limit at `T0`.
fn limited(id: &str, state: &ConnectionHealth, failure: Failure) -> ConnectionHealth {
    let event = HealthEvent::LimitedAt {
        started_at: T0.minus(10),
        failure: Failure {
            blame: Blame::Connection,
            ..failure
        },
        exit: exit(),
        met_by: id.into(),
    };
    state.step(&event, T0, &RULES).state
}

fn plain() -> Failure {
    refusal(429, &error("rate limit reached"), true).unwrap()
}

fn rested(state: &ConnectionHealth, limit: &Limit, now: Millis) -> crate::health::Step {
    state.step(&HealthEvent::SiblingLimited(limit.clone()), now, &RULES)
}

fn limit() -> Limit {
    Limit::of(&limited("a", &ConnectionHealth::default(), plain()), T0).unwrap()
}

fn siblings(board: &Board, node: Option<&str>, now: Millis) -> Vec<String> {
    let found = board.siblings(node, &limit(), now);
    found.iter().map(ToString::to_string).collect()
}

#[test]
fn egr_01_all_that_leave_by_the_address_rest_as_long() {
    let one = told(&[
        ("a", seen(ours(), T0, false)),
        ("b", seen(ours(), T0.minus(HOUR_MS), false)),
        ("c", seen(ours(), T0, false)),
        ("d", seen(address("203.0.113.8"), T0, true)),
    ]);
    let board = board(&[("one", one)]);
    assert_eq!(siblings(&board, Some("one"), T0), ["b", "c"]);
    let failure = plain();
    assert_eq!(
        (failure.blame, failure.reason),
        (Blame::EgressIp, Reason::RateLimitExceeded)
    );
    assert_eq!(failure.cooldown, Cooldown::Ladder);
    let limit = limit();
    assert_eq!(limit.until, T0.plus(3_000));
    let step = rested(&ConnectionHealth::default(), &limit, T0);
    assert_eq!(
        (step.remaining_ms, step.state.status(T0).as_str()),
        (3_000, "unavailable")
    );
}

/// Beyond the reference: a subscription's month is a limit like any other.
#[test]
fn egr_02_a_month_s_quota_counts_too() {
    let body = error("Monthly usage limit reached.");
    let failure = refusal(429, &body, true).unwrap();
    assert_eq!(
        (failure.blame, failure.reason),
        (Blame::EgressIp, Reason::QuotaExhausted)
    );
}

#[test]
fn egr_03_only_a_429_is_a_limit_of_the_address() {
    for status in [400, 402, 403, 500, 503] {
        let failure = refusal(status, &error("quota exceeded"), true).unwrap_err();
        assert_ne!(failure.blame, Blame::EgressIp, "{status}");
    }
    // What is final, or of the model alone, or of a relay's own account.
    for body in [
        error("account has been deactivated"),
        error("the model is overloaded"),
        r#"{"code": "429", "message": "Error from provider (Xiaomi): Too many requests", "type": "limitation"}"#.to_owned(),
    ] {
        let failure = refusal(429, &body, true).unwrap_err();
        assert_ne!(failure.blame, Blame::EgressIp, "{body}");
    }
}

#[test]
fn egr_04_an_address_that_is_not_known_is_nobody_s() {
    let failure = refusal(429, &error("rate limit reached"), false).unwrap();
    assert_eq!(
        failure.blame,
        Blame::Connection,
        "the account rests, not the model"
    );
    let old = told(&[("b", seen(ours(), T0.minus(DAY_MS), false))]);
    let board = board(&[("one", old)]);
    assert!(siblings(&board, Some("one"), T0).is_empty());
    let b = ConnectionId::from("b");
    assert!(board.latest(Some("one"), &b, T0.minus(1)).is_some());
    assert!(board.latest(Some("one"), &b, T0).is_none());
}

#[test]
fn egr_05_a_terminal_state_stays() {
    let mut state = ConnectionHealth::default();
    let ended = Failure {
        terminal: Some(Terminal::Banned),
        blame: Blame::Connection,
        ..plain()
    };
    let event = HealthEvent::Failed {
        started_at: T0.minus(10),
        failure: ended,
    };
    state = state.step(&event, T0, &RULES).state;
    let step = rested(&state, &limit(), T0);
    assert_eq!(
        (step.changed, step.outcome),
        (false, Outcome::AlreadyTerminal)
    );
}

#[test]
fn egr_06_the_longer_cooldown_holds() {
    for (before_ms, after_ms) in [(2_000, 3_000), (3_000, 3_000), (600_000, 600_000)] {
        let before = ConnectionHealth {
            cooldown_until: Some(T0.plus(before_ms)),
            last_cooldown_ms: before_ms,
            backoff_level: 2,
            ..ConnectionHealth::default()
        };
        let step = rested(&before, &limit(), T0);
        assert_eq!(step.remaining_ms, after_ms);
        assert_eq!(step.changed, before_ms < after_ms);
        assert_eq!(step.state.backoff_level, 2);
    }
}

#[test]
fn egr_07_another_family_is_left_alone() {
    let foreign = Observation {
        family: "other".into(),
        ..seen(ours(), T0, false)
    };
    let board = board(&[(
        "one",
        told(&[("a", seen(ours(), T0, false)), ("openai", foreign)]),
    )]);
    assert!(siblings(&board, Some("one"), T0).is_empty());
}

#[test]
fn egr_09_one_that_never_cools_is_left_alone() {
    let rules = HealthRules {
        disable_cooling: true,
        ..RULES
    };
    let event = HealthEvent::SiblingLimited(limit());
    let step = ConnectionHealth::default().step(&event, T0, &rules);
    assert_eq!((step.changed, step.outcome), (false, Outcome::Nothing));
}

#[test]
fn egr_12_a_sibling_s_level_stays() {
    let before = ConnectionHealth {
        cooldown_until: Some(T0.minus(10)),
        backoff_level: 3,
        last_cooldown_ms: 12_000,
        ..ConnectionHealth::default()
    };
    let after = rested(&before, &limit(), T0).state;
    assert_eq!(after.backoff_level, 3);
    let error = after.last_error.unwrap();
    assert_eq!(
        (error.status, error.reason),
        (429, Reason::RateLimitExceeded)
    );
    assert_eq!(
        (error.error_type, error.rule.as_str()),
        (None, SIBLING_RULE)
    );
    // One that had fallen meanwhile does not come back.
    let long_ago = ConnectionHealth {
        cooldown_until: Some(T0.minus(DAY_MS)),
        ..before
    };
    assert_eq!(rested(&long_ago, &limit(), T0).state.backoff_level, 0);
}

#[test]
fn egr_15_the_last_address_counts() {
    let one = told(&[("b", seen(ours(), T0.minus(10 * HOUR_MS), true))]);
    let two = told(&[("b", seen(address("203.0.113.8"), T0.minus(HOUR_MS), true))]);
    let board = board(&[("one", one), ("two", two)]);
    assert!(siblings(&board, Some("one"), T0).is_empty());
    assert!(siblings(&board, None, T0).is_empty());
}

#[test]
fn egr_16_an_answer_is_kept_for_five_minutes() {
    let probed = Probed { at: T0 };
    assert!(probed.is_fresh(T0.plus(299_999), 300_000));
    assert!(!probed.is_fresh(T0.plus(300_000), 300_000));
}

/// Without a proxy each node has an address of its own.
#[test]
fn what_a_node_saw_itself_goes_first() {
    let other = address("203.0.113.9");
    let one = told(&[
        ("direct", seen(ours(), T0.minus(HOUR_MS), false)),
        ("proxied", seen(ours(), T0.minus(HOUR_MS), true)),
    ]);
    let two = told(&[
        ("direct", seen(other, T0, false)),
        ("proxied", seen(other, T0, true)),
        ("only-there", seen(ours(), T0, false)),
    ]);
    let board = board(&[("one", one), ("two", two)]);
    assert_eq!(siblings(&board, Some("one"), T0), ["direct", "only-there"]);
    assert_eq!(siblings(&board, Some("two"), T0), ["only-there"]);
    assert_eq!(siblings(&board, None, T0), ["only-there"]);
}

#[test]
fn who_knows_better_is_left_alone() {
    let limit = limit();
    for later in [
        ConnectionHealth {
            recovered_from: Some(T0),
            ..ConnectionHealth::default()
        },
        ConnectionHealth {
            renewed_at: Some(T0.plus(1)),
            ..ConnectionHealth::default()
        },
    ] {
        let step = rested(&later, &limit, T0.plus(5));
        assert_eq!((step.changed, step.outcome), (false, Outcome::Stale));
    }
    let step = rested(&ConnectionHealth::default(), &limit, limit.until);
    assert_eq!(step.outcome, Outcome::Stale, "it is over");
    // A success of a request from before is old news.
    let rests = rested(&ConnectionHealth::default(), &limit, T0).state;
    let success = HealthEvent::Succeeded {
        started_at: T0.minus(10),
    };
    assert!(!rests.step(&success, T0.plus(5), &RULES).changed);
    let success = HealthEvent::Succeeded {
        started_at: T0.plus(1),
    };
    let free = rests.step(&success, T0.plus(5), &RULES).state;
    assert!(free.is_clean() && free.egress.is_none());
    assert!(!rested(&free, &limit, T0.plus(6)).changed);
}

#[test]
fn a_limit_is_told_as_it_is_and_ends_with_its_cause() {
    let met = limited("a", &ConnectionHealth::default(), plain());
    assert_eq!(met.backoff_level, 1);
    assert_eq!(Limit::of(&met, T0.plus(3_000)), None, "its time is over");
    let other = Failure {
        status: 500,
        reason: Reason::ServerError,
        ..plain()
    };
    let event = HealthEvent::Failed {
        started_at: T0.plus(4_000),
        failure: Failure {
            blame: Blame::Connection,
            ..other
        },
    };
    let after = met.step(&event, T0.plus(5_000), &RULES).state;
    assert_eq!(after.egress, None, "another failure explains it now");
    // A herd that meets the same limit finds it as it is.
    let again = limited("a", &met, plain());
    assert_eq!(again, met);
}

#[test]
fn a_rule_that_says_whom_it_charges_holds() {
    let rule = |scope| ErrorRule {
        status: 429,
        text: "rate limit".into(),
        scope,
        reason: Reason::RateLimitExceeded,
        cooldown_ms: None,
    };
    let body = error("rate limit reached");
    for scope in [RuleScope::Connection, RuleScope::Model, RuleScope::Provider] {
        let rules = [rule(scope)];
        let judged = judged(429, &body, true, (Reading::default(), &rules));
        assert_eq!(judged.unwrap_err().blame, scope.blame());
    }
    let honoured = Reading {
        honours_rule_scope: true,
        ..Reading::default()
    };
    let body = r#"{"error": {"code": "account_quota_exceeded", "message": "no"}}"#;
    assert!(judged(429, body, true, (honoured, &[])).is_err());
    assert!(judged(429, body, true, (Reading::default(), &[])).is_ok());
}
