//! The vectors MLK-*. MLK-14 is not among them: every announcement holds within
//! `hintBounds`, prose too. MLK-17 to MLK-19 are the configuration's, MLK-21 to
//! MLK-25 the program's.

use super::super::{LockoutEvent, charged};
use super::{Desk, T0, failure, family, hinted, rules};
use crate::config::ModelLockout;
use crate::failure::{Blame, Cooldown, Failure, HintSource, Reason};

#[test]
fn mlk_01_02_03_scopes() {
    let at = |status, model| {
        let mut desk = Desk::new(rules("codex", false));
        desk.fail(model, failure(status), T0);
        desk
    };
    let desk = at(429, "gpt-5.6-luna");
    assert_eq!(desk.only().0, "codex", "MLK-01");
    assert!(desk.left("gpt-5.4", T0).is_some(), "MLK-01");
    assert!(desk.left("gpt-5.3-codex-spark", T0).is_none(), "MLK-01");
    let desk = at(502, "gpt-5.6-luna");
    assert_eq!(desk.only().0, "exact:gpt-5.6-luna", "MLK-02");
    assert!(desk.left(" GPT-5.6-Luna ", T0).is_some());
    assert!(desk.left("gpt-5.4", T0).is_none(), "MLK-02");
    let desk = at(404, "gpt-5.9");
    assert_eq!(desk.only().0, "gpt-5.9", "MLK-03");
    assert!(desk.left("gpt-5.4", T0).is_none(), "MLK-03");
}

#[test]
fn mlk_05_families_with_names_of_their_own() {
    let mut rules = rules("openai", false);
    rules.families = vec![
        family("family:gemini", &["*gemini*"]),
        family("family:claude", &["claude-*", "cloud-*", "*anthropic*"]),
    ];
    let mut desk = Desk::new(rules);
    desk.fail("gemini-3-pro", failure(429), T0);
    assert_eq!(desk.only().0, "family:gemini");
    assert!(desk.left("gemini-2.5-flash", T0).is_some());
    assert!(desk.left("claude-sonnet", T0).is_none());
    assert!(desk.left("gpt-oss", T0).is_none());
}

#[test]
fn mlk_06_another_name_of_the_provider() {
    let codex = crate::catalogue::entry("codex").unwrap();
    let cx = crate::catalogue::entry("cx").unwrap();
    assert_eq!(codex.provider.id, cx.provider.id);
}

#[test]
fn mlk_07_09_the_switch() {
    let on = |enabled| ModelLockout {
        enabled,
        ..ModelLockout::default()
    };
    let of_connection = || Failure {
        blame: Blame::Connection,
        ..failure(429)
    };
    let charge = |enabled, failure| charged(failure, &on(enabled), false).blame;
    assert_eq!(charge(false, of_connection()), Blame::Connection, "MLK-07");
    assert_eq!(charge(true, of_connection()), Blame::Model);
    let quota = Failure {
        reason: Reason::QuotaExhausted,
        ..of_connection()
    };
    assert_eq!(charge(true, quota), Blame::Connection);
    let other = Failure {
        status: 500,
        ..of_connection()
    };
    assert_eq!(charge(true, other), Blame::Connection);

    let mut desk = Desk::new(rules("groq", true));
    let mut now = T0;
    for expected in [120_000, 240_000, 480_000, 960_000, 1_800_000, 1_800_000] {
        desk.fail("m", failure(503), now);
        assert_eq!(desk.left("m", now), Some(expected), "MLK-09");
        now = now.plus(expected + 1);
    }
}

#[test]
fn mlk_10_failures_that_follow_each_other() {
    for (after, count) in [(150_000, 2), (150_001, 1)] {
        let mut desk = Desk::new(rules("groq", true));
        desk.fail("m", failure(503), T0);
        desk.fail("m", failure(503), T0.plus(after));
        assert_eq!(desk.only().1.failure_count, count, "{after}");
    }
}

#[test]
fn mlk_11_a_combos_success_halves() {
    let mut desk = Desk::new(rules("groq", true));
    let mut now = T0;
    for _ in 0..5 {
        desk.fail("m", failure(503), now);
        now = now.plus(desk.left("m", now).unwrap() + 1);
    }
    assert_eq!(desk.only().1.failure_count, 5);
    for expected in [2, 1] {
        desk.succeed("m", true, now);
        assert_eq!(desk.only().1.failure_count, expected);
    }
    desk.succeed("m", true, now);
    assert!(desk.state.is_clean(), "cleared on the third");
}

#[test]
fn halving_does_not_end_a_lock_that_runs() {
    let mut desk = Desk::new(rules("groq", true));
    desk.fail("m", failure(429), T0);
    let later = T0.plus(1);
    desk.succeed("m", true, later);
    assert_eq!(desk.only().1.failure_count, 0);
    assert!(desk.left("m", later).is_some());
    desk.succeed("m", false, later);
    assert!(desk.state.is_clean());
}

#[test]
fn mlk_13_an_announcement_goes_beyond_the_cap() {
    for source in [
        HintSource::Header,
        HintSource::GoogleRpcRetryInfo,
        HintSource::Body,
    ] {
        let mut desk = Desk::new(rules("groq", false));
        desk.fail("m", hinted(429, 471_600_000, source), T0);
        assert_eq!(desk.left("m", T0), Some(471_600_000));
    }
}

#[test]
fn mlk_15_a_lock_is_never_shortened() {
    let mut desk = Desk::new(rules("groq", true));
    desk.fail("m", hinted(503, 600_000, HintSource::Header), T0);
    let later = T0.plus(1000);
    desk.fail("m", failure(503), later);
    let (_, lockout) = desk.only();
    assert_eq!(lockout.until, T0.plus(600_000));
    assert_eq!(lockout.failure_count, 2);
}

#[test]
fn mlk_26_broken_streams_lock_on_the_third_in_a_row() {
    let torn = |desk: &mut Desk, now| {
        let event = LockoutEvent::Failed {
            started_at: now,
            model: "m".to_owned(),
            failure: failure(502),
            after_output: true,
        };
        desk.tell(&event, now);
        desk.left("m", now).is_some()
    };
    let mut desk = Desk::new(rules("groq", false));
    let apart = 600_000;
    let locked: Vec<bool> = (0..3)
        .map(|n| torn(&mut desk, T0.plus(n * apart)))
        .collect();
    assert_eq!(locked, [false, false, true]);
    let mut desk = Desk::new(rules("groq", false));
    let locked: Vec<bool> = (0..3)
        .map(|n| torn(&mut desk, T0.plus(n * (apart + 1))))
        .collect();
    assert_eq!(locked, [false, false, false]);
    let mut desk = Desk::new(rules("groq", false));
    torn(&mut desk, T0);
    torn(&mut desk, T0.plus(1));
    desk.succeed("m", true, T0.plus(2));
    assert!(!torn(&mut desk, T0.plus(3)), "a whole stream begins anew");
}

#[test]
fn per_03_what_a_rule_says_is_capped_unless_it_is_a_quota() {
    let ruled = |reason| {
        let mut desk = Desk::new(rules("agentrouter", false));
        let failure = Failure {
            reason,
            cooldown: Cooldown::Fixed(21_600_000),
            ..failure(403)
        };
        desk.fail("m", failure, T0);
        desk.left("m", T0)
    };
    assert_eq!(ruled(Reason::AuthError), Some(1_800_000));
    assert_eq!(ruled(Reason::QuotaExhausted), Some(21_600_000));
}

#[test]
fn a_quota_without_a_time_lasts_to_the_reset_within_the_cap() {
    let mut rules = rules("gemini", false);
    let quota = || Failure {
        reason: Reason::QuotaExhausted,
        ..failure(429)
    };
    let mut desk = Desk::new(rules.clone());
    desk.fail("m", quota(), T0);
    assert_eq!(desk.left("m", T0), Some(1_800_000));
    rules.cap_ms = u64::MAX;
    let mut desk = Desk::new(rules);
    desk.fail("m", quota(), T0);
    // Noon in UTC is five in the morning in California.
    assert_eq!(desk.left("m", T0), Some(19 * 3_600_000));
}

#[test]
fn per_19_a_connection_that_never_cools_locks_the_model() {
    let limited = Failure {
        blame: Blame::Connection,
        reason: Reason::QuotaExhausted,
        ..failure(429)
    };
    let off = ModelLockout::default();
    assert_eq!(charged(limited.clone(), &off, true).blame, Blame::Model);
    assert_eq!(charged(limited, &off, false).blame, Blame::Connection);
}
