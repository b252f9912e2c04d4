//! Expired connections are tried again, a few times.

use super::*;

const RULES: RetryRules = RetryRules {
    enabled: true,
    sweep_ms: 60_000,
    base_ms: 300_000,
    max_retries: 3,
};

fn expired() -> ConnectionHealth {
    fail_at(&ConnectionHealth::default(), T0, failure(401)).state
}

fn due(health: &ConnectionHealth) -> (u32, Millis) {
    match health.retry(&RULES) {
        Retry::At { number, due } => (number, due),
        other @ (Retry::Never | Retry::Over) => panic!("{other:?}"),
    }
}

fn begin(health: &ConnectionHealth, number: u32, now: Millis) -> Step {
    let event = HealthEvent::Retried {
        number,
        expired_at: T0,
    };
    health.step(&event, now, &API_KEY)
}

#[test]
fn ccd_19_retries_wait_longer_and_longer_and_end() {
    let mut health = expired();
    let mut last = T0;
    for (number, wait) in [(1, 300_000), (2, 600_000), (3, 1_200_000)] {
        assert_eq!(due(&health), (number, last.plus(wait)));
        last = last.plus(wait);
        let step = begin(&health, number, last);
        assert_eq!((step.changed, step.outcome), (true, Outcome::Retrying));
        health = step.state;
        assert_eq!(health.status(last), Status::Terminal(Terminal::Expired));
    }
    assert_eq!(health.retry(&RULES), Retry::Over);
    let more = RetryRules {
        max_retries: 10,
        ..RULES
    };
    // At most four hours apart.
    for (number, wait_min) in [(4, 40), (5, 80), (6, 160), (7, 240), (8, 240)] {
        let wait_ms = wait_min * 60_000;
        let expected = Retry::At {
            number,
            due: last.plus(wait_ms),
        };
        assert_eq!(health.retry(&more), expected);
        last = last.plus(wait_ms);
        health = begin(&health, number, last).state;
    }
}

#[test]
fn a_retry_is_begun_once() {
    let health = expired();
    let now = T0.plus(300_000);
    let first = begin(&health, 1, now);
    for number in [0, 1, 3] {
        let again = begin(&first.state, number, now);
        assert_eq!((again.changed, again.outcome), (false, Outcome::Nothing));
    }
    // Of a state that is over and has come back.
    let other = HealthEvent::Retried {
        number: 2,
        expired_at: T0.plus(1),
    };
    assert!(!first.state.step(&other, now, &API_KEY).changed);
}

#[test]
fn only_what_is_expired_is_tried_again() {
    for status in [402, 403, 429, 503] {
        let health = fail_at(&ConnectionHealth::default(), T0, failure(status)).state;
        assert_eq!(health.retry(&RULES), Retry::Never, "{status}");
        assert!(!begin(&health, 1, T0.plus(300_000)).changed, "{status}");
    }
    assert_eq!(ConnectionHealth::default().retry(&RULES), Retry::Never);
    for rules in [
        RetryRules {
            enabled: false,
            ..RULES
        },
        RetryRules {
            max_retries: 0,
            ..RULES
        },
    ] {
        assert_eq!(expired().retry(&rules), Retry::Never);
    }
}

#[test]
fn what_ends_the_state_ends_the_count() {
    let tried = begin(&expired(), 1, T0.plus(300_000)).state;
    let later = T0.plus(300_100);
    let ends = [
        HealthEvent::Succeeded {
            started_at: T0.plus(300_001),
        },
        HealthEvent::Reset,
        HealthEvent::CredentialsChanged,
    ];
    for event in ends {
        let well = tried.step(&event, later, &API_KEY).state;
        assert_eq!(well.expired_retry, None, "{event:?}");
        assert_eq!(well.status(later), Status::Active, "{event:?}");
    }
    // A failure of the retry changes nothing.
    let failed = fail_at(&tried, later, failure(401));
    assert_eq!(failed.outcome, Outcome::AlreadyTerminal);
    assert_eq!(failed.state, tried);
}

#[test]
fn a_retry_forgives_that_the_tokens_were_refused() {
    let health = expired();
    assert_eq!(health.forgiven_at(), None);
    let now = T0.plus(300_000);
    assert_eq!(begin(&health, 1, now).state.forgiven_at(), Some(now));
}
