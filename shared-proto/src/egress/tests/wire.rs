//! What an echo service says, and what a record holds.

use super::*;

#[test]
fn answers_of_an_echo_service() {
    for (body, want) in [
        (r#"{"ip": "203.0.113.7"}"#, Some("203.0.113.7")),
        (
            " {\"ip\":\" 2001:DB8::7 \", \"more\": 1}\n",
            Some("2001:db8::7"),
        ),
        ("203.0.113.7\n", Some("203.0.113.7")),
        ("\"203.0.113.7\"", Some("203.0.113.7")),
        ("::ffff:203.0.113.7", Some("203.0.113.7")),
        ("10.0.0.7", Some("10.0.0.7")),
        ("0.0.0.0", None),
        ("255.255.255.255", None),
        ("224.0.0.1", None),
        ("203.0.113.7:80", None),
        (r#"{"ip": 7}"#, None),
        (r#"{"ip": null}"#, None),
        (r#"{"address": "203.0.113.7"}"#, None),
        (r#"{"ip": "203.0.113.7"#, None),
        ("<html>203.0.113.7</html>", None),
        ("", None),
    ] {
        let answer = read_answer(body.as_bytes()).map(|address| address.to_string());
        assert_eq!(answer.as_deref(), want, "{body}");
    }
    let long = format!("{}203.0.113.7", " ".repeat(MAX_ANSWER));
    assert_eq!(read_answer(long.as_bytes()), None);
}

#[test]
fn records_stay_within_their_bound() {
    let mut many = told(&[]);
    for n in 0..=MAX_OBSERVED {
        let id = ConnectionId::new(format!("{n:08}-{}", "x".repeat(119)));
        many.seen
            .insert(id, seen(address("2001:db8:ffff:ffff::7"), T0, true));
    }
    many.tidy(T0);
    assert_eq!(many.seen.len(), MAX_OBSERVED);
    let bytes = rmp_serde::to_vec_named(&many).unwrap();
    assert!(
        bytes.len() < crate::mirror::record::MAX_RECORD_BYTES,
        "{}",
        bytes.len()
    );
    let back: Observations = rmp_serde::from_slice(&bytes).unwrap();
    assert_eq!(back, many);
    many.tidy(T0.plus(DAY_MS));
    assert!(many.seen.is_empty());
}

proptest! {
    #[test]
    fn no_answer_panics(body in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = read_answer(&body);
    }

    /// However often and in whichever order siblings hear of limits, the
    /// longest holds, and no level changes.
    #[test]
    fn the_order_of_limits_does_not_matter(
        lengths in prop::collection::vec(1_u64..100_000, 1..6),
        level in 0_u32..6,
    ) {
        let before = ConnectionHealth {
            backoff_level: level,
            cooldown_until: Some(T0.minus(1)),
            last_cooldown_ms: DAY_MS,
            ..ConnectionHealth::default()
        };
        let mut state = before;
        for length in lengths.iter().chain(lengths.iter().rev()) {
            let limit = Limit { until: T0.plus(*length), ..limit() };
            let step = rested(&state, &limit, T0);
            prop_assert!(step.remaining_ms >= state.remaining_ms(T0));
            state = step.state;
        }
        let longest = lengths.iter().max().copied().unwrap_or(0);
        prop_assert_eq!(state.remaining_ms(T0), longest);
        prop_assert_eq!(state.backoff_level, level);
    }
}
