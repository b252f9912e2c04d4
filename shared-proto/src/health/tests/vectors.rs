//! The reference's own cases, by their ids.

use super::*;

#[test]
fn ccd_02_api_key_ladder() {
    let wants = [
        (3_000, 1),
        (6_000, 2),
        (12_000, 3),
        (24_000, 4),
        (48_000, 5),
        (96_000, 5),
        (96_000, 5),
    ];
    for (level, want) in (0_u32..).zip(wants) {
        let step = fail_at(&rested_at_level(level, T0), T0, failure(503));
        assert_eq!((step.remaining_ms, step.state.backoff_level), want);
    }
}

#[test]
fn ccd_03_oauth_ladder() {
    for (level, want) in [(0, 5_000), (3, 40_000), (8, 1_280_000), (9, 1_280_000)] {
        let state = rested_at_level(level, T0);
        let step = state.step(&failed(T0.minus(1), failure(503)), T0, &OAUTH);
        assert_eq!(step.remaining_ms, want);
    }
}

#[test]
fn ccd_04_an_announcement_replaces_the_ladder() {
    let step = fail_at(&rested_at_level(3, T0), T0, hinted(120_000));
    assert_eq!(step.remaining_ms, 120_000);
    assert_eq!(step.state.backoff_level, 0);
    assert_eq!(step.state.hint_source, Some(HintSource::Header));
    let outcome = Outcome::Cooled {
        cooldown_ms: 120_000,
        hinted: true,
    };
    assert_eq!(step.outcome, outcome);
    let error = step.state.last_error.unwrap();
    assert_eq!(error.reason, Reason::RateLimitExceeded);
}

#[test]
fn announcements_are_only_used_where_allowed() {
    let rules = HealthRules {
        use_hints: false,
        ..OAUTH
    };
    let step = ConnectionHealth::default().step(&failed(T0, hinted(120_000)), T0, &rules);
    assert_eq!((step.remaining_ms, step.state.backoff_level), (5_000, 1));
}

#[test]
fn ccd_06_the_cap_holds() {
    let rules = HealthRules {
        base_ms: 600_000,
        max_steps: 8,
        ..API_KEY
    };
    let step = rested_at_level(3, T0).step(&failed(T0.minus(1), failure(503)), T0, &rules);
    assert_eq!(step.remaining_ms, 1_800_000);
}

#[test]
fn no_base_is_a_second() {
    let rules = HealthRules {
        base_ms: 0,
        ..API_KEY
    };
    assert_eq!(rules.climb(0), (1_000, 1));
    assert_eq!(rules.climb(2), (4_000, 3));
}

#[test]
fn absurd_rules_and_levels_saturate() {
    let rules = HealthRules {
        base_ms: u64::MAX,
        max_steps: u32::MAX,
        cap_ms: u64::MAX,
        ..API_KEY
    };
    assert_eq!(rules.climb(u32::MAX), (u64::MAX, u32::MAX));
}

#[test]
fn ccd_07_a_herd_counts_once() {
    let mut state = ConnectionHealth::default();
    let mut marks = 0;
    for n in 0..10 {
        let now = T0.plus(n);
        let step = state.step(&failed(T0, failure(503)), now, &API_KEY);
        marks += u32::from(step.changed);
        assert_eq!(step.remaining_ms, 3_000 - n);
        state = step.state;
    }
    assert_eq!((marks, state.backoff_level), (1, 1));
}

#[test]
fn ccd_08_terminal_is_left_alone() {
    let banned = fail_at(&ConnectionHealth::default(), T0, failure(403)).state;
    let step = fail_at(&banned, T0.plus(60_000), failure(503));
    assert_eq!(step.outcome, Outcome::AlreadyTerminal);
    assert_eq!((step.changed, step.remaining_ms), (false, 0));
    assert_eq!(step.state, banned);
    assert_eq!(step.state.status(T0).as_str(), "banned");
}

#[test]
fn ccd_10_disable_cooling_does_not_hold_back_terminal_states() {
    let rules = HealthRules {
        disable_cooling: true,
        ..API_KEY
    };
    let state = ConnectionHealth::default();
    let step = state.step(&failed(T0, failure(402)), T0, &rules);
    assert_eq!(step.state.status(T0).as_str(), "credits_exhausted");

    let step = state.step(&failed(T0, hinted(9_000)), T0, &rules);
    assert_eq!(step.outcome, Outcome::Noted);
    assert_eq!(step.state.eligible(T0), Ok(()));
    assert_eq!(step.state.last_error.unwrap().status, 429);
}

#[test]
fn ccd_11_a_terminal_state_has_no_timer() {
    let cooling = fail_at(&ConnectionHealth::default(), T0, failure(503)).state;
    let step = fail_at(&cooling, T0.plus(10), failure(402));
    assert_eq!(
        step.outcome,
        Outcome::Terminal(Terminal::CreditsExhausted),
        "even while it cools"
    );
    assert_eq!(step.state.cooldown_until, None);
    assert_eq!(step.remaining_ms, 0);
    assert_eq!(step.state.deadline(T0), None);
}

#[test]
fn ccd_12_a_deactivated_account_is_banned_with_a_sub_reason() {
    let ban = Failure {
        error_type: Some(ErrorType::AccountDeactivated),
        ..failure(403)
    };
    let rules = HealthRules {
        auto_disable_banned: true,
        ..API_KEY
    };
    let step = ConnectionHealth::default().step(&failed(T0, ban), T0, &rules);
    let terminal = step.state.terminal.unwrap();
    assert_eq!(terminal.kind, Terminal::Banned);
    assert_eq!(terminal.sub_reason, Some(ErrorType::AccountDeactivated));
    assert!(step.state.auto_disabled);
    let expired = ConnectionHealth::default().step(&failed(T0, failure(401)), T0, &rules);
    assert!(!expired.state.auto_disabled, "only a ban");
}

#[test]
fn ccd_20_a_success_clears_every_error_field() {
    let state = ConnectionHealth {
        last_error: Some(LastError::new(&failure(429), T0)),
        hint_source: Some(HintSource::Body),
        ..rested_at_level(3, T0)
    };
    let now = T0.plus(5);
    let success = HealthEvent::Succeeded { started_at: T0 };
    let step = state.step(&success, now, &API_KEY);
    assert!(step.changed);
    assert_eq!(step.outcome, Outcome::Recovered);
    let clean = ConnectionHealth {
        recovered_from: Some(T0),
        ..ConnectionHealth::default()
    };
    assert_eq!(step.state, clean);
    let again = step.state.step(&success, now, &API_KEY);
    assert!(
        !again.changed,
        "a success on a healthy connection is no change"
    );
}

#[test]
fn ccd_22_the_level_survives_the_cooldown() {
    let first = fail_at(&ConnectionHealth::default(), T0, failure(503));
    let again_at = T0.plus(3_000 + 29_999);
    let second = fail_at(&first.state, again_at, failure(503));
    assert_eq!(
        (second.remaining_ms, second.state.backoff_level),
        (6_000, 2)
    );
}

#[test]
fn the_level_falls_step_by_step() {
    let state = ConnectionHealth {
        cooldown_until: Some(T0),
        backoff_level: 3,
        last_cooldown_ms: 48_000,
        ..ConnectionHealth::default()
    };
    let wants = [
        (0, 3),
        (47_999, 3),
        (48_000, 2),
        (96_000, 1),
        (144_000, 0),
        (999_999, 0),
    ];
    for (rested, level) in wants {
        assert_eq!(state.level(T0.plus(rested)), level, "after {rested} ms");
    }
    let short = ConnectionHealth {
        last_cooldown_ms: 5,
        ..state
    };
    assert_eq!(short.level(T0.plus(29_999)), 3);
    assert_eq!(short.level(T0.plus(30_000)), 2);
}

#[test]
fn deadlines_are_the_moments_it_reads_differently() {
    let mut now = T0;
    let mut state = fail_at(&ConnectionHealth::default(), now, failure(503)).state;
    state.backoff_level = 2;
    let mut moments = Vec::new();
    while let Some(at) = state.deadline(now) {
        moments.push(at.since(T0));
        now = at;
    }
    assert_eq!(moments, [3_000, 33_000, 63_000]);
    assert_eq!(ConnectionHealth::default().deadline(T0), None);
}

#[test]
fn ccd_23_stored_times_are_read_as_numbers_or_iso() {
    let at = |ms| Some(T0.plus(ms));
    let wants = [
        ("1790856060000.0", at(60_000)),
        ("1790856060000", at(60_000)),
        ("1790856060000.25", at(60_001)),
        (" 2026-10-01T12:01:00Z ", at(60_000)),
        ("2026-10-01T12:01:00.000Z", at(60_000)),
        ("2026-10-01T14:01:00+02:00", at(60_000)),
        ("2026-10-01 12:01:00", at(60_000)),
        ("2026-10-01T12:01:00", at(60_000)),
        ("0", Some(Millis::from_epoch_ms(0))),
        ("", None),
        ("soon", None),
        ("-1790856060000", None),
        ("1e13", None),
        ("1.2.3", None),
        ("NaN", None),
        ("inf", None),
        ("99999999999999999999999999", None),
        ("1960-01-01T00:00:00Z", None),
        ("2026-13-01T00:00:00Z", None),
    ];
    for (text, want) in wants {
        assert_eq!(parse_until(text), want, "{text:?}");
    }
    let state = ConnectionHealth {
        cooldown_until: parse_until("1790856060000.0"),
        ..ConnectionHealth::default()
    };
    assert_eq!(state.status(T0), Status::Unavailable);
    assert_eq!(state.remaining_ms(T0), 60_000);
    assert_eq!(state.eligible(T0.plus(60_000)), Ok(()));
}

#[test]
fn a_record_with_unknown_fields_is_read() {
    let state = fail_at(&ConnectionHealth::default(), T0, hinted(5_000)).state;
    let mut json = serde_json::to_value(&state).unwrap();
    json["from_the_future"] = serde_json::json!({"a": [1]});
    json["last_error"]["from_the_future"] = serde_json::json!(1);
    let packed = rmp_serde::to_vec_named(&json).unwrap();
    assert_eq!(
        rmp_serde::from_slice::<ConnectionHealth>(&packed).unwrap(),
        state
    );
    let empty = rmp_serde::to_vec_named(&serde_json::json!({})).unwrap();
    let healthy: ConnectionHealth = rmp_serde::from_slice(&empty).unwrap();
    assert_eq!(healthy, ConnectionHealth::default());
    let named = rmp_serde::to_vec_named(&state).unwrap();
    assert_eq!(
        rmp_serde::from_slice::<ConnectionHealth>(&named).unwrap(),
        state
    );
}

/// A refusal without a reason.
fn rejected() -> Failure {
    Failure {
        terminal: None,
        error_type: Some(ErrorType::RequestRejected),
        reason: Reason::RateLimitExceeded,
        cooldown: Cooldown::Streak,
        ..failure(403)
    }
}

#[test]
fn ccd_15_the_third_refusal_in_a_row_is_a_ban() {
    let mut state = ConnectionHealth::default();
    let mut now = T0;
    for rest in [300_000, 900_000] {
        let step = state.step(&failed(now, rejected()), now, &OAUTH);
        assert_eq!(step.remaining_ms, rest);
        assert_eq!(step.state.status(now), Status::Unavailable);
        state = step.state;
        now = now.plus(rest + 1);
    }
    let step = state.step(&failed(now, rejected()), now, &OAUTH);
    assert_eq!(step.state.status(now), Status::Terminal(Terminal::Banned));
    assert!(step.state.auto_disabled);
    let last = step.state.last_error.unwrap();
    assert_eq!(last.error_type, Some(ErrorType::Forbidden));
}

#[test]
fn ccd_16_what_was_in_flight_is_the_same_refusal() {
    let first = ConnectionHealth::default().step(&failed(T0, rejected()), T0, &OAUTH);
    let during = T0.plus(1_000);
    let step = first.state.step(&failed(T0, rejected()), during, &OAUTH);
    assert!(!step.changed);
    // It began before the rest and ends after it.
    let late = T0.plus(300_001);
    let step = first.state.step(&failed(T0, rejected()), late, &OAUTH);
    assert!(!step.changed);
    assert_eq!(step.state.refusals.map(|r| r.count), Some(1));
    // The same for the one that would be a ban.
    let second = first.state.step(&failed(late, rejected()), late, &OAUTH);
    let step = second.state.step(&failed(late, rejected()), late, &OAUTH);
    assert!(!step.changed && step.state.terminal.is_none());
}

#[test]
fn ccd_18_a_day_without_one_or_a_success_begins_anew() {
    let first = ConnectionHealth::default().step(&failed(T0, rejected()), T0, &OAUTH);
    let next = T0.plus(86_400_001);
    let step = first.state.step(&failed(next, rejected()), next, &OAUTH);
    assert_eq!(step.remaining_ms, 300_000);
    assert_eq!(step.state.refusals.map(|r| r.count), Some(1));
    let well = T0.plus(300_001);
    let event = HealthEvent::Succeeded { started_at: well };
    let step = first.state.step(&event, well, &OAUTH);
    assert_eq!(step.state.refusals, None);
}
