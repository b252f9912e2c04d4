//! Tables of the gate's word, and what holds for every failure.

mod properties;

use proptest::prelude::*;

use super::*;
use crate::failure::{ErrorType, HintSource, ResetHint, Terminal};

/// 2026-10-01T12:00:00Z.
const T0: Millis = Millis::from_epoch_ms(1_790_856_000_000);

const RESTLESS: RotationRules = RotationRules {
    rests_without_reset: false,
    ..RotationRules::DEFAULT
};

fn failure(status: u16) -> Failure {
    Failure {
        status,
        reason: match status {
            429 => Reason::RateLimitExceeded,
            400 => Reason::Unknown,
            _ => Reason::ServerError,
        },
        blame: if status == 400 {
            Blame::Request
        } else {
            Blame::Connection
        },
        error_type: None,
        fallback: status != 400,
        terminal: None,
        cooldown: if status == 400 {
            Cooldown::None
        } else {
            Cooldown::Ladder
        },
        hint: None,
        client_retry_after_ms: None,
        counts_for_breaker: status >= 500,
        rule: format!("status-{status}"),
        restated: None,
        upstream_code: None,
        message: String::new(),
    }
}

fn announced(status: u16) -> Failure {
    Failure {
        hint: Some(ResetHint {
            wait_ms: 9_000,
            source: HintSource::Header,
            field: "retry-after".into(),
        }),
        ..failure(status)
    }
}

fn met(at: u64) -> Met {
    Met {
        began: T0.plus(at),
        now: T0.plus(at).plus(10),
        unanswered: false,
    }
}

fn judged(rules: &RotationRules, failure: Failure) -> (Failure, Option<Ruling>) {
    let mut failure = failure;
    let gated = rules.judge(&mut failure, &RotationCounts::default(), met(0));
    (failure, gated.map(|gated| gated.ruling))
}

/// The default with one class in other words.
fn with(class: RotationClass, change: impl Fn(&mut ClassRule)) -> RotationRules {
    let mut rules = RotationRules::DEFAULT;
    change(match class {
        RotationClass::Limited => &mut rules.limited,
        RotationClass::BadGateway => &mut rules.bad_gateway,
        RotationClass::Server => &mut rules.server,
        RotationClass::BadRequest => &mut rules.bad_request,
    });
    rules
}

#[test]
fn every_status_has_its_class() {
    for status in 100..=1000 {
        let expected = match status {
            400 => Some(RotationClass::BadRequest),
            429 => Some(RotationClass::Limited),
            502 => Some(RotationClass::BadGateway),
            500..=599 => Some(RotationClass::Server),
            _ => None,
        };
        assert_eq!(RotationClass::of(status, false), expected, "{status}");
        let unanswered = match status {
            500..=599 => Some(RotationClass::BadGateway),
            _ => expected,
        };
        assert_eq!(RotationClass::of(status, true), unanswered, "{status}");
    }
}

#[test]
fn an_open_gate_says_nothing() {
    for status in 100..600 {
        let before = failure(status);
        assert_eq!(
            judged(&RotationRules::DEFAULT, before.clone()),
            (before, None)
        );
    }
}

#[test]
fn a_class_that_is_off_is_held_back_and_no_other() {
    let statuses = [
        (429, "429"),
        (500, "500"),
        (503, "500"),
        (529, "500"),
        (502, "502"),
    ];
    for class in RotationClass::ALL {
        let off = with(class, |rule| rule.rotate = false);
        for (status, word) in statuses {
            let (after, ruling) = judged(&off, announced(status));
            if class.as_str() == word {
                let expected = (Some(Ruling::Held), false, Cooldown::None);
                assert_eq!(
                    (ruling, after.fallback, after.cooldown),
                    expected,
                    "{status}"
                );
                assert_eq!(after.counts_for_breaker, status >= 500, "{status}");
            } else {
                assert_eq!((after, ruling), (announced(status), None), "{status}");
            }
        }
    }
    let all = RotationRules {
        enabled: false,
        ..RotationRules::DEFAULT
    };
    for (status, _) in statuses {
        assert_eq!(judged(&all, failure(status)).1, Some(Ruling::Held));
    }
    // It is the client's answer with or without a gate.
    assert_eq!(judged(&all, failure(400)), (failure(400), None));
    for status in [401, 402, 403, 404, 408, 413] {
        assert_eq!(judged(&all, failure(status)), (failure(status), None));
    }
}

#[test]
fn what_is_decided_already_is_never_held_back() {
    let off = RotationRules {
        enabled: false,
        ..RotationRules::DEFAULT
    };
    let ended = |terminal| Failure {
        terminal: Some(terminal),
        error_type: Some(ErrorType::QuotaExhausted),
        ..failure(429)
    };
    let table = [
        ended(Terminal::CreditsExhausted),
        ended(Terminal::Banned),
        ended(Terminal::Expired),
        Failure {
            rule: "operator-rule-3".into(),
            ..failure(503)
        },
        Failure {
            reason: Reason::ServiceNotRunning,
            ..failure(503)
        },
        // It does not fit there, which is nobody's failure.
        Failure {
            blame: Blame::Request,
            ..failure(429)
        },
    ];
    for before in table {
        assert_eq!(judged(&off, before.clone()), (before, None));
    }
}

#[test]
fn the_nth_within_the_window_moves_on() {
    let rules = with(RotationClass::Server, |rule| {
        rule.threshold = 3;
        rule.window_ms = 10_000;
    });
    let mut seen = RotationCounts::default();
    let mut rulings = Vec::new();
    for at in [0, 4_000, 8_000, 13_000, 30_000, 31_000, 32_000, 33_000] {
        let mut failure = failure(500);
        let gated = rules.judge(&mut failure, &seen, met(at)).unwrap();
        assert!(gated.is_counted());
        assert_eq!(failure.fallback, gated.ruling == Ruling::Passed);
        rulings.push((gated.nth.unwrap(), gated.ruling));
        let moment = (met(at).began, met(at).now);
        seen = seen.with(gated.class, moment, &rules.server).unwrap();
    }
    let expected = [
        (1, Ruling::Held),
        (2, Ruling::Held),
        (3, Ruling::Passed),
        (3, Ruling::Passed),
        (1, Ruling::Held),
        (2, Ruling::Held),
        (3, Ruling::Passed),
        (4, Ruling::Passed),
    ];
    assert_eq!(rulings, expected);
    // Another class counts by itself.
    let mut other = failure(502);
    assert_eq!(rules.judge(&mut other, &seen, met(33_500)), None);
}

/// Whoever met the outage that was counted last is ruled on as the one that counted it.
#[test]
fn the_nth_seen_by_many_at_once_is_the_nth_for_all_of_them() {
    let rules = with(RotationClass::Limited, |rule| rule.threshold = 2);
    let once = RotationCounts::default()
        .with(RotationClass::Limited, (T0, T0.plus(10)), &rules.limited)
        .unwrap();
    let rule = |seen: &RotationCounts, at| {
        let gated = rules.judge(&mut failure(429), seen, met(at)).unwrap();
        (gated.nth, gated.ruling)
    };
    for began in 0..=10 {
        assert_eq!(rule(&once, began), (Some(1), Ruling::Held), "{began}");
    }
    assert_eq!(rule(&once, 11), (Some(2), Ruling::Passed));
    let moment = (T0.plus(11), T0.plus(20));
    let twice = once.with(RotationClass::Limited, moment, &rules.limited);
    let twice = twice.unwrap();
    for began in 11..=20 {
        assert_eq!(rule(&twice, began), (Some(2), Ruling::Passed), "{began}");
        let again = twice.with(
            RotationClass::Limited,
            (T0.plus(began), T0.plus(30)),
            &rules.limited,
        );
        assert_eq!(again, None, "{began}");
    }
}

#[test]
fn a_400_that_is_let_through_rests_the_connection() {
    let on = with(RotationClass::BadRequest, |rule| rule.rotate = true);
    let (turned, ruling) = judged(&on, failure(400));
    assert_eq!(ruling, Some(Ruling::Turned));
    assert!(turned.fallback);
    assert_eq!(
        (turned.blame, turned.cooldown),
        (Blame::Connection, Cooldown::Fixed(120_000))
    );
    let reset = RotationRules {
        reset_ms: 7_000,
        ..on
    };
    assert_eq!(
        judged(&reset, failure(400)).0.cooldown,
        Cooldown::Fixed(7_000)
    );
    // One that moves on by itself stays as it is.
    let other = Failure {
        fallback: true,
        ..failure(400)
    };
    assert_eq!(judged(&on, other.clone()), (other, None));
    let third = RotationRules {
        bad_request: ClassRule {
            threshold: 3,
            ..on.bad_request
        },
        ..on
    };
    assert_eq!(
        judged(&third, failure(400)),
        (failure(400), Some(Ruling::Held))
    );
}

#[test]
fn without_a_reset_nothing_rests_where_the_operator_says_so() {
    for status in [429, 500, 502, 503] {
        let (after, ruling) = judged(&RESTLESS, failure(status));
        assert_eq!(
            (ruling, after.cooldown),
            (Some(Ruling::Unrested), Cooldown::None)
        );
        assert!(after.fallback, "{status}");
        let told = announced(status);
        assert_eq!(judged(&RESTLESS, told.clone()), (told, None));
        let reset = RotationRules {
            reset_ms: 1,
            ..RESTLESS
        };
        assert_eq!(judged(&reset, failure(status)), (failure(status), None));
    }
}
