//! The reference's own cases, by their ids, and the bounds.

use proptest::prelude::*;

use crate::pick::refusal::*;
use crate::pick::{Exclusion, ExclusionReason};

fn excluded(
    provider: &str,
    model: &str,
    reason: ExclusionReason,
    remaining_ms: Option<u64>,
) -> Exclusion {
    Exclusion {
        provider: provider.into(),
        model: model.into(),
        reason,
        remaining_ms,
    }
}

fn refuse(exclusions: &[Exclusion]) -> Refusal {
    Refusal::none_left(Pool {
        size: exclusions.len(),
        attempts: &[],
        exclusions,
    })
}

fn header(refusal: &Refusal, name: &str) -> Option<String> {
    let headers = refusal.explanation.headers();
    headers.into_iter().find(|h| h.0 == name).map(|h| h.1)
}

fn reasons(refusal: &Refusal) -> Vec<&'static str> {
    let excluded = &refusal.explanation.diagnostics.excluded;
    excluded.iter().map(|e| e.reason.as_str()).collect()
}

#[test]
fn cf_01_all_locked() {
    let refusal = refuse(&[
        excluded("openai", "a", ExclusionReason::ModelLockout, Some(60_000)),
        excluded("claude", "b", ExclusionReason::ModelLockout, Some(120_000)),
    ]);
    assert_eq!(
        (refusal.status, refusal.code),
        (503, "all_targets_cooling_down")
    );
    assert_eq!(refusal.error_type, "service_unavailable");
    assert_eq!(refusal.retry_after_seconds, Some(60));
    let action = header(&refusal, "x-omniroute-recovery-action");
    assert_eq!(action.as_deref(), Some("wait"));
    let list = header(&refusal, "x-omniroute-combo-excluded");
    let want = "openai/a:model_lockout,claude/b:model_lockout";
    assert_eq!(list.as_deref(), Some(want));
    let seconds = header(&refusal, "x-omniroute-retry-after-seconds");
    assert_eq!(seconds.as_deref(), Some("60"));
    let json = serde_json::to_value(&refusal.explanation.diagnostics).unwrap();
    let want = serde_json::json!({
        "poolSize": 2,
        "attempted": 0,
        "excluded": [
            {"provider": "openai", "model": "a", "reason": "model_lockout"},
            {"provider": "claude", "model": "b", "reason": "model_lockout"},
        ],
        "attemptOrder": [],
        "terminalReason": "all_targets_cooling_down",
        "recovery": "wait",
    });
    assert_eq!(json, want);
}

#[test]
fn cf_02_timers_of_two_kinds() {
    let refusal = refuse(&[
        excluded("openai", "a", ExclusionReason::ModelLockout, Some(60_000)),
        excluded("claude", "b", ExclusionReason::CircuitOpen, Some(1_001)),
    ]);
    assert_eq!(refusal.status, 503);
    assert_eq!(reasons(&refusal), ["model_lockout", "circuit_open"]);
    assert_eq!(refusal.retry_after_seconds, Some(2));
}

#[test]
fn cf_04_nothing_that_time_mends() {
    let refusal = refuse(&[
        excluded("openai", "a", ExclusionReason::Unavailable, None),
        excluded("openai", "b", ExclusionReason::FreeTierDrained, Some(5_000)),
    ]);
    assert_eq!(
        (refusal.status, refusal.code),
        (404, "no_executable_targets")
    );
    assert_eq!(refusal.retry_after_seconds, None);
    let why = header(&refusal, "x-omniroute-combo-terminal-reason");
    assert_eq!(why.as_deref(), Some("no_executable_targets"));
    assert_eq!(header(&refusal, "x-omniroute-retry-after-seconds"), None);
    let empty = refuse(&[]);
    assert_eq!(empty.status, 404);
    assert_eq!(header(&empty, "x-omniroute-combo-excluded"), None);
}

#[test]
fn cf_05_one_timer_is_enough_and_all_are_named() {
    let refusal = refuse(&[
        excluded("openai", "a", ExclusionReason::ModelLockout, Some(9_000)),
        excluded("claude", "b", ExclusionReason::Unavailable, None),
    ]);
    assert_eq!(refusal.status, 503);
    assert_eq!(reasons(&refusal), ["model_lockout", "unavailable"]);
}

#[test]
fn cf_06_a_connection_cooldown() {
    let refusal = refuse(&[excluded(
        "p",
        "m",
        ExclusionReason::ConnectionCooldown,
        Some(5_000),
    )]);
    assert_eq!(
        (refusal.status, refusal.retry_after_seconds),
        (503, Some(5))
    );
}

#[test]
fn cf_08_lists_are_bounded() {
    let many = vec![
        excluded(
            "provider",
            "a-model",
            ExclusionReason::ConnectionCooldown,
            Some(1)
        );
        100
    ];
    let refusal = refuse(&many);
    assert_eq!(refusal.explanation.diagnostics.excluded.len(), 64);
    assert_eq!(refusal.explanation.diagnostics.pool_size, 100);
    let list = header(&refusal, "x-omniroute-combo-excluded").unwrap();
    assert!(list.len() <= 900);
    assert!(list.ends_with(":connection_cooldown"), "whole entries only");
}

#[test]
fn cf_09_the_hint_says_an_hour_at_most() {
    let hint = RecoveryHint::in_words(RecoveryAction::Wait, "  ", Some(99_999));
    assert_eq!(hint.retry_after_seconds, Some(3_600));
    assert_eq!(hint.next_step, "wait", "never blank");
    let day = 86_400_000;
    let refusal = refuse(&[excluded("p", "m", ExclusionReason::ModelLockout, Some(day))]);
    assert_eq!(refusal.retry_after_seconds, Some(86_400), "the true time");
}

#[test]
fn cf_10_an_unknown_timer_gives_no_header() {
    let cooling = ExclusionReason::ProviderCooldown;
    let refusal = refuse(&[excluded("p", "m", cooling, None)]);
    assert_eq!((refusal.status, refusal.retry_after_seconds), (503, None));
    let refusal = refuse(&[
        excluded("p", "m", cooling, None),
        excluded("p", "n", cooling, Some(0)),
    ]);
    assert_eq!(
        refusal.retry_after_seconds,
        Some(1),
        "the known one decides"
    );
}

#[test]
fn reasons_and_their_words() {
    let timers = ExclusionReason::ALL.map(|r| (r.as_str(), r.is_timer()));
    let want = [
        ("circuit_open", true),
        ("provider_cooldown", true),
        ("connection_cooldown", true),
        ("model_lockout", true),
        ("unavailable", false),
        ("free_tier_drained", false),
    ];
    assert_eq!(timers, want);
    for reason in ExclusionReason::ALL {
        assert_eq!(serde_json::to_value(reason).unwrap(), reason.as_str());
    }
    let actions = [
        (TerminalReason::AllTargetsCoolingDown, "wait"),
        (TerminalReason::NoExecutableTargets, "switch-combo"),
        (TerminalReason::AllAccountsInactive, "switch-combo"),
        (TerminalReason::QuotaExhausted, "switch-combo"),
        (TerminalReason::AllModelsFailed, "try-auto"),
        (TerminalReason::MaxAttemptsExceeded, "try-auto"),
        (TerminalReason::NoUpstreamResponse, "retry"),
    ];
    for (reason, action) in actions {
        assert_eq!(reason.action().as_str(), action);
        let json = serde_json::to_value(reason.action()).unwrap();
        assert_eq!(json, action);
    }
}

proptest! {
    /// Whatever the names, every value fits a header and every field its bound.
    #[test]
    fn everything_is_bounded(names in prop::collection::vec((".{0,120}", ".{0,120}"), 0..90), words in ".*") {
        let list: Vec<_> = names
            .iter()
            .map(|(p, m)| excluded(p, m, ExclusionReason::CircuitOpen, None))
            .collect();
        let refusal = refuse(&list);
        for (_, value) in refusal.explanation.headers() {
            prop_assert!(value.len() <= 900);
            prop_assert!(value.chars().all(|c| c == ' ' || c.is_ascii_graphic()));
        }
        for entry in &refusal.explanation.diagnostics.excluded {
            prop_assert!(entry.target.provider.chars().count() <= 64);
            prop_assert!(entry.target.model.chars().count() <= 96);
        }
        let hint = RecoveryHint::in_words(RecoveryAction::Retry, &words, None);
        prop_assert!(!hint.next_step.trim().is_empty());
        prop_assert!(hint.next_step.chars().count() <= 200);
    }

    /// 503 exactly when a timer is there; never a wait of nothing, never longer than the first timer.
    #[test]
    fn the_rule(list in prop::collection::vec((0_usize..6, prop::option::of(0_u64..10_000_000)), 0..20)) {
        let list: Vec<_> = list
            .iter()
            .map(|(r, ms)| excluded("p", "m", ExclusionReason::ALL[*r], *ms))
            .collect();
        let refusal = refuse(&list);
        let timers: Vec<_> = list.iter().filter(|e| e.reason.is_timer()).collect();
        prop_assert_eq!(refusal.status, if timers.is_empty() { 404 } else { 503 });
        let first = timers.iter().filter_map(|e| e.remaining_ms).min();
        prop_assert_eq!(refusal.retry_after_seconds.is_some(), first.is_some());
        if let (Some(seconds), Some(first)) = (refusal.retry_after_seconds, first) {
            prop_assert!(seconds >= 1 && seconds * 1_000 >= first);
            prop_assert!(seconds == 1 || (seconds - 1) * 1_000 < first);
        }
    }
}
