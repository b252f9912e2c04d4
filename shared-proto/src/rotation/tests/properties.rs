//! What holds for every failure.

use super::*;

fn any_rule() -> impl Strategy<Value = ClassRule> {
    (any::<bool>(), 0_u32..5, 0_u64..20_000).prop_map(|(rotate, threshold, window_ms)| ClassRule {
        rotate,
        threshold,
        window_ms,
    })
}

fn any_rules() -> impl Strategy<Value = RotationRules> {
    let classes = (any_rule(), any_rule(), any_rule(), any_rule());
    (any::<bool>(), classes, 0_u64..10, any::<bool>()).prop_map(
        |(enabled, (limited, bad_gateway, server, bad_request), reset_ms, rests)| RotationRules {
            enabled,
            limited,
            bad_gateway,
            server,
            bad_request,
            reset_ms,
            rests_without_reset: rests,
        },
    )
}

fn any_failure() -> impl Strategy<Value = Failure> {
    let statuses = prop_oneof![Just(400), Just(429), Just(500), Just(502), any::<u16>()];
    let terminal = prop_oneof![
        Just(None),
        Just(Some(Terminal::Banned)),
        Just(Some(Terminal::Expired)),
        Just(Some(Terminal::CreditsExhausted)),
    ];
    (statuses, any::<bool>(), terminal, any::<bool>()).prop_map(
        |(status, fallback, terminal, told)| Failure {
            fallback,
            terminal,
            hint: announced(429).hint.filter(|_| told),
            ..failure(status)
        },
    )
}

proptest! {
    #[test]
    fn the_gate_only_takes_away_but_for_a_400(
        rules in any_rules(),
        before in any_failure(),
        times in prop::collection::vec((0_u64..50_000, 0_u64..5_000), 0..20),
        at in 0_u64..60_000,
        unanswered: bool,
    ) {
        let mut seen = RotationCounts::default();
        for (began, took) in times {
            let (began, now) = (T0.plus(began), T0.plus(began).plus(took));
            for class in RotationClass::ALL {
                if let Some(next) = seen.with(class, (began, now), rules.of(class)) {
                    seen = next.clone();
                    // The same once more is no news.
                    prop_assert_eq!(next.with(class, (began, now), rules.of(class)), None);
                }
            }
        }
        let mut after = before.clone();
        let gated = rules.judge(&mut after, &seen, Met { unanswered, ..met(at) });
        prop_assert_eq!(after.counts_for_breaker, before.counts_for_breaker);
        if before.terminal.is_some() {
            prop_assert_eq!((&after, gated), (&before, None));
        }
        match gated.map(|gated| gated.ruling) {
            None | Some(Ruling::Passed) => prop_assert_eq!(&after, &before),
            Some(Ruling::Held) => {
                prop_assert!(!after.fallback);
                prop_assert_eq!(after.cooldown, Cooldown::None);
            }
            Some(Ruling::Unrested) => prop_assert_eq!(after.cooldown, Cooldown::None),
            Some(Ruling::Turned) => prop_assert!(!before.fallback && before.status == 400),
        }
        // Ruled on once more, nothing is let go that was held back.
        let mut again = after.clone();
        rules.judge(&mut again, &seen, Met { unanswered, ..met(at) });
        if gated.is_some_and(|gated| gated.ruling == Ruling::Held) && before.status != 400 {
            prop_assert_eq!(again, after);
        }
    }

    #[test]
    fn counts_are_bounded_and_in_order(
        attempts in prop::collection::vec((0_u64..5_000, 0_u64..3_000), 0..400),
        window_ms in 0_u64..100_000,
    ) {
        let rule = ClassRule { rotate: true, threshold: 100, window_ms };
        let mut seen = RotationCounts::default();
        let mut clock = 0;
        for (later, took) in attempts {
            clock = u64::saturating_add(clock, later);
            let (now, began) = (T0.plus(clock), T0.plus(clock).minus(took));
            seen = seen.with(RotationClass::Limited, (began, now), &rule).unwrap_or(seen);
            prop_assert!(seen.within(RotationClass::Limited, window_ms, now) <= 100);
            prop_assert!(seen.after_success(now.plus(1)).is_empty());
        }
    }
}
