//! Every history of up to six events, each by a fresh or an old attempt, with the invariants checked after each.

use super::*;
use crate::egress::{Exit, Limit};
use crate::rotation::RotationClass;

/// What can happen next, and how long after the event before.
fn alphabet() -> Vec<(u64, HealthEvent)> {
    let fixed = Failure {
        cooldown: Cooldown::Fixed(2_000),
        ..failure(500)
    };
    vec![
        (0, failed(Millis::default(), failure(503))),
        (4_000, failed(Millis::default(), failure(503))),
        (1, failed(Millis::default(), hinted(9_000))),
        (40_000, failed(Millis::default(), fixed)),
        (1, failed(Millis::default(), failure(401))),
        (1, shared(Millis::default())),
        (1, withheld(Millis::default())),
        (1, HealthEvent::Succeeded { started_at: T0 }),
        (1, HealthEvent::Reset),
        (
            1,
            HealthEvent::Retried {
                number: 1,
                expired_at: T0,
            },
        ),
        (1, HealthEvent::CredentialsChanged),
    ]
}

/// The same about a connection with several keys, behind a gate that counts.
fn alphabet_of_keys() -> Vec<(u64, HealthEvent)> {
    let refused = |key| HealthEvent::KeyRefused {
        started_at: T0,
        key,
        failure: failure(401),
    };
    vec![
        (1, refused(1)),
        (1, refused(2)),
        (
            1,
            HealthEvent::KeyAccepted {
                started_at: T0,
                key: 1,
            },
        ),
        (
            3_000,
            HealthEvent::Counted {
                started_at: T0,
                class: RotationClass::Limited,
            },
        ),
        (0, failed(Millis::default(), failure(429))),
        (1, failed(Millis::default(), failure(401))),
        (1, HealthEvent::Succeeded { started_at: T0 }),
        (1, HealthEvent::Reset),
        (1, HealthEvent::CredentialsChanged),
    ]
}

/// A limit of its address, counted at `at`, of 7 s.
fn shared(at: Millis) -> HealthEvent {
    HealthEvent::SiblingLimited(Limit {
        exit: Exit {
            family: "family".into(),
            address: std::net::Ipv4Addr::LOCALHOST.into(),
        },
        met_by: "other".into(),
        at,
        until: at.plus(7_000),
        reason: Reason::RateLimitExceeded,
        hint_source: None,
    })
}

/// A window of 8 s that was used up at `at`.
fn withheld(at: Millis) -> HealthEvent {
    HealthEvent::Withheld(Origin {
        window: "8s".into(),
        window_ms: Some(8_000),
        resets_at: at.plus(8_000),
        observed_at: at,
    })
}

/// The event as an attempt that began `age` ms before `now`.
fn aged(event: &HealthEvent, now: Millis, age: u64) -> HealthEvent {
    match event {
        HealthEvent::Failed { failure, .. } => failed(now.minus(age), failure.clone()),
        HealthEvent::LimitedAt { .. } => event.clone(),
        HealthEvent::SiblingLimited(_) => shared(now.minus(age)),
        HealthEvent::Withheld(_) => withheld(now.minus(age)),
        HealthEvent::Succeeded { .. } => HealthEvent::Succeeded {
            started_at: now.minus(age),
        },
        HealthEvent::Retried { number, .. } => HealthEvent::Retried {
            number: *number,
            expired_at: now.minus(age),
        },
        HealthEvent::Counted { class, .. } => HealthEvent::Counted {
            started_at: now.minus(age),
            class: *class,
        },
        HealthEvent::KeyRefused { key, failure, .. } => HealthEvent::KeyRefused {
            started_at: now.minus(age),
            key: *key,
            failure: failure.clone(),
        },
        HealthEvent::KeyAccepted { key, .. } => HealthEvent::KeyAccepted {
            started_at: now.minus(age),
            key: *key,
        },
        HealthEvent::Reset => HealthEvent::Reset,
        HealthEvent::CredentialsChanged => HealthEvent::CredentialsChanged,
    }
}

fn check(before: &ConnectionHealth, event: &HealthEvent, now: Millis, step: &Step) {
    let after = &step.state;
    assert_eq!(step.changed, after != before, "{event:?}");
    let is_failure = matches!(
        event,
        HealthEvent::Failed { .. } | HealthEvent::SiblingLimited(_) | HealthEvent::Withheld(_)
    );
    if is_failure && before.terminal.is_some() {
        assert_eq!(after, before, "a failure overwrote a terminal state");
    }
    if is_failure && after.terminal.is_none() {
        let (was, is) = (before.remaining_ms(now), after.remaining_ms(now));
        assert!(is >= was, "{event:?} shortened {was} to {is}");
        assert!(after.backoff_level <= before.level(now).max(before.backoff_level) + 1);
    }
    if after.terminal.is_some() {
        assert_eq!(after.cooldown_until, None);
        assert_eq!(after.preflight, None);
    }
    if let Some(origin) = &after.preflight {
        let end = after.cooldown_until;
        assert_eq!(end, Some(origin.resets_at), "the reason of another rest");
    }
    let aside = |state: &ConnectionHealth| state.keys_aside.len();
    let (may_grow, may_shrink) = match event {
        HealthEvent::KeyRefused { .. } => (true, false),
        HealthEvent::KeyAccepted { .. } | HealthEvent::Reset => (false, true),
        _ => (false, false),
    };
    assert!(may_grow || aside(after) <= aside(before), "{event:?}");
    assert!(may_shrink || aside(after) >= aside(before), "{event:?}");
    if let HealthEvent::Counted { .. } | HealthEvent::KeyRefused { .. } = event {
        assert_eq!(after.eligible(now), before.eligible(now), "{event:?}");
    }
    if let HealthEvent::Succeeded { started_at } = event {
        let set_later = before.terminal.is_some_and(|t| t.at > *started_at);
        assert_eq!(after.terminal, before.terminal.filter(|_| set_later));
    }
    check_views(after, now, step.remaining_ms);
    let again = after.step(event, now, &API_KEY);
    assert!(!again.changed, "{event:?} counted twice");
}

fn check_views(after: &ConnectionHealth, now: Millis, remaining_ms: u64) {
    assert!(after.backoff_level <= API_KEY.max_steps);
    assert_eq!(remaining_ms, after.remaining_ms(now));
    let cools = after.status(now) == Status::Unavailable;
    assert_eq!(remaining_ms > 0, cools);
    assert!(after.deadline(now).is_none_or(|at| at > now));
}

fn explore(
    state: &ConnectionHealth,
    now: Millis,
    (alphabet, depth): (&[(u64, HealthEvent)], u32),
    seen: &mut u64,
) {
    *seen += 1;
    if depth == 0 {
        return;
    }
    for (later, event) in alphabet {
        let now = now.plus(*later);
        for age in [1, 5_000] {
            let event = aged(event, now, age);
            let step = state.step(&event, now, &API_KEY);
            check(state, &event, now, &step);
            if step.changed || age == 1 {
                explore(&step.state, now, (alphabet, depth - 1), seen);
            }
        }
    }
}

#[test]
fn every_short_history_keeps_the_invariants() {
    let mut seen = 0;
    let events = (&alphabet()[..], 6);
    explore(&ConnectionHealth::default(), T0, events, &mut seen);
    assert!(seen > 1_000_000, "{seen} histories");
}

#[test]
fn every_short_history_of_several_keys_keeps_them_too() {
    let mut seen = 0;
    let events = (&alphabet_of_keys()[..], 5);
    explore(&ConnectionHealth::default(), T0, events, &mut seen);
    assert!(seen > 50_000, "{seen} histories");
}
