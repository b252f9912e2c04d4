//! What is remembered, which refusals it explains, and what is left alone for it.

use super::{BOUND_MS, HOUR, T0, at, known, policy, window};
use crate::failure::{Blame, Cooldown, ErrorType, Failure, HintSource, Reason, Terminal};
use crate::quota::{Share, WINDOWS_MAX, Window, Windows, informed};

#[test]
fn the_newest_word_on_a_window_holds() {
    let first = known(&[
        window("a", Some(10.0), Some(HOUR)),
        window("b", Some(5.0), None),
    ]);
    let newer = at(window("a", Some(20.0), None), T0.plus(1));
    let next = first.with(std::slice::from_ref(&newer), None);
    assert_eq!(next.all(), [newer, window("b", Some(5.0), None)]);
    let older = at(window("a", Some(1.0), None), T0.minus(1));
    assert_eq!(next.with(&[older], None), next);
}

#[test]
fn at_most_so_many_are_remembered() {
    let many: Vec<Window> = (0..100)
        .map(|n| at(window(&format!("w{n:03}"), None, Some(HOUR)), T0.plus(n)))
        .collect();
    let mut all = Windows::default();
    for window in &many {
        all = all.with(std::slice::from_ref(window), None);
    }
    assert_eq!(all.all(), &many[100 - WINDOWS_MAX..]);
}

fn quota(cooldown: Cooldown) -> Failure {
    Failure {
        status: 429,
        reason: Reason::QuotaExhausted,
        blame: Blame::Connection,
        error_type: Some(ErrorType::QuotaExhausted),
        fallback: true,
        terminal: None,
        cooldown,
        hint: None,
        client_retry_after_ms: None,
        counts_for_breaker: false,
        rule: "subscription-quota".into(),
        restated: None,
        upstream_code: None,
        message: String::new(),
    }
}

fn wait(failure: &Failure) -> Option<u64> {
    failure.hint.as_ref().map(|hint| hint.wait_ms)
}

#[test]
fn ccd_24_the_fullest_window_says_when_a_spent_quota_ends() {
    let windows = known(&[
        window("5h", Some(98.0), Some(2 * HOUR)),
        window("7d", Some(60.0), Some(100 * HOUR)),
    ]);
    let got = informed(quota(Cooldown::Fixed(HOUR)), &windows, "m", BOUND_MS, T0);
    let hint = got.hint.unwrap();
    assert_eq!(hint.wait_ms, 7_200_000);
    assert_eq!(hint.source, HintSource::QuotaWindow);
    assert_eq!(hint.field, "5h");
    assert_eq!(got.cooldown, Cooldown::Ladder);
    assert_eq!(got.client_retry_after_ms, Some(7_200_000));
}

#[test]
fn which_window_is_meant() {
    let scoped = |scope: &str, window: Window| Window {
        scope: Some(scope.into()),
        ..window
    };
    let table: [(&[Window], Option<u64>); 9] = [
        (&[], None),
        (&[window("a", Some(49.9), Some(HOUR))], None),
        (&[window("a", Some(50.0), Some(HOUR))], Some(HOUR)),
        // Of unknown use: full.
        (
            &[
                window("a", Some(99.0), Some(HOUR)),
                window("b", None, Some(2 * HOUR)),
            ],
            Some(2 * HOUR),
        ),
        // It is over, or nobody knows when it is.
        (
            &[
                window("a", Some(90.0), None),
                window("b", Some(100.0), Some(0)),
            ],
            None,
        ),
        // Both have to begin anew.
        (
            &[
                window("a", Some(100.0), Some(HOUR)),
                window("b", Some(100.0), Some(9 * HOUR)),
            ],
            Some(9 * HOUR),
        ),
        // It counts other models.
        (&[scoped("x", window("a", Some(90.0), Some(HOUR)))], None),
        (
            &[scoped("m", window("a", Some(90.0), Some(HOUR)))],
            Some(HOUR),
        ),
        (
            &[window("a", Some(90.0), Some(2 * BOUND_MS))],
            Some(BOUND_MS),
        ),
    ];
    for (windows, expected) in table {
        let got = informed(quota(Cooldown::Ladder), &known(windows), "m", BOUND_MS, T0);
        assert_eq!(wait(&got), expected, "{windows:?}");
    }
}

#[test]
fn other_failures_stay_as_they_are() {
    let windows = known(&[window("a", Some(100.0), Some(HOUR))]);
    let usual = quota(Cooldown::Ladder);
    let others = [
        Failure {
            reason: Reason::RateLimitExceeded,
            ..usual.clone()
        },
        Failure {
            terminal: Some(Terminal::CreditsExhausted),
            ..usual.clone()
        },
        Failure {
            blame: Blame::EgressIp,
            ..usual.clone()
        },
        Failure {
            hint: Some(crate::failure::ResetHint {
                wait_ms: 5,
                source: HintSource::Header,
                field: "retry-after".into(),
            }),
            ..usual
        },
        quota(Cooldown::None),
        // An operator fixed it.
        Failure {
            rule: "operator-rule-1".into(),
            ..quota(Cooldown::Fixed(5))
        },
    ];
    for failure in others {
        let got = informed(failure.clone(), &windows, "m", BOUND_MS, T0);
        assert_eq!(got, failure);
    }
}

#[test]
fn what_is_used_up_by_the_policy() {
    let spent = |used: f64, resets_in, of: &str, provider: &str| {
        let windows = known(&[window(of, Some(used), Some(resets_in))]);
        let policy = policy(provider, |rules| {
            rules.default_threshold_percent = 5;
            let of_codex = [("primary".to_owned(), 40)].into();
            rules.provider_window_defaults = [("codex".to_owned(), of_codex)].into();
        });
        let found = policy.spent(&windows, "m", None, T0);
        found.map(|(_, origin)| (origin.window, origin.resets_at.since(T0)))
    };
    let yes = |name: &str| Some((name.to_owned(), HOUR));
    assert_eq!(spent(95.0, HOUR, "secondary", "codex"), yes("secondary"));
    assert_eq!(spent(94.9, HOUR, "secondary", "codex"), None);
    assert_eq!(spent(60.0, HOUR, "primary", "codex"), yes("primary"));
    assert_eq!(spent(59.0, HOUR, "primary", "codex"), None);
    assert_eq!(spent(60.0, HOUR, "primary", "openai"), None);
    assert_eq!(spent(100.0, 0, "primary", "codex"), None);
}

#[test]
fn what_is_left_alone_for_other_reasons() {
    let full = window("a", Some(100.0), Some(HOUR));
    let longer = window("b", Some(99.0), Some(3 * HOUR));
    let windows = known(&[full, longer, window("c", None, Some(9 * HOUR))]);
    let on = policy("claude", |_| {});
    // Of several the one that ends last; one of unknown use is none of them.
    let (_, origin) = on.spent(&windows, "m", Some(T0.minus(1)), T0).unwrap();
    assert_eq!(origin.window, "b");
    assert_eq!(on.spent(&windows, "m", Some(T0), T0), None, "known better");
    let off = policy("claude", |rules| rules.enabled = false);
    assert_eq!(off.spent(&windows, "m", None, T0), None);
}

#[test]
fn a_warning_is_given_once_for_each_window_and_reset() {
    let warn = Some(Share::of_whole(20));
    let mut known = Windows::default();
    let mut warned = |used, resets_in: u64, after: u64| {
        let new = at(window("a", Some(used), Some(resets_in)), T0.plus(after));
        let next = known.with(&[new], warn);
        let news = next.newly_warned(&known).count();
        known = next;
        news
    };
    assert_eq!(warned(79.0, 5 * HOUR, 0), 0);
    assert_eq!(warned(80.0, 5 * HOUR, 1), 1);
    assert_eq!(warned(90.0, 5 * HOUR + 1_000, 2), 0, "the same reset");
    assert_eq!(warned(10.0, 5 * HOUR, 3), 0);
    assert_eq!(warned(85.0, 5 * HOUR, 4), 0, "it was said");
    assert_eq!(warned(1.0, 10 * HOUR, 5), 0);
    assert_eq!(warned(81.0, 10 * HOUR, 6), 1, "another reset");
}
