//! What is learned of tools, and for how long.

use super::{KEEP_MS, Learned, ToolEvent, ToolLimit, learned, stated};
use crate::asked::Asked;
use crate::clock::Millis;

const T0: Millis = Millis::from_epoch_ms(1_900_000_000_000);

#[test]
fn refusals_that_state_a_limit() {
    for (text, limit) in [
        ("maximum number of tools is 64", 64),
        (
            "Invalid 'tools': array too long. Expected an array with maximum length 128, but got an array with length 150 instead.",
            128,
        ),
        ("Too many tools: 200 given, the maximum is 20.", 20),
        ("tools: the maximum number of items is 32 (got 33)", 32),
        ("You may pass at most this. Maximum: 1 tool", 1),
        ("MAXIMUM NUMBER OF TOOLS IS 10000", 10_000),
    ] {
        assert_eq!(stated(400, text), Some(limit), "{text}");
    }
}

#[test]
fn what_states_none() {
    assert_eq!(stated(500, "maximum number of tools is 64"), None, "TL-02");
    assert_eq!(
        stated(400, "maximum number of tools is 20000"),
        None,
        "TL-06"
    );
    for text in [
        "too many tools",
        "maximum number of tools is 0",
        "the maximum number of messages is 64",
        "This model's maximum context length is 8192 tokens; your tools take 9000",
        "tools too large: maximum 8000 tokens",
        "Invalid 'tools[0].function.name': string too long. Expected a string with maximum length 64, but got a string with length 65 instead.",
        "a tool's description has a maximum of 1024 characters",
        "tools are limited; see the maximum in our documentation. Error 4711",
        "maximum number of tools is 99999999999999999999",
        "",
    ] {
        assert_eq!(stated(400, text), None, "{text}");
    }
}

#[test]
fn what_teaches_nothing() {
    let text = "Invalid 'tools': array too long. Expected an array with maximum length 64, but got an array with length 100 instead.";
    let nothing = Asked::new(b"{}", []);
    assert_eq!(learned(400, text, 100, &nothing), Some(64));
    assert_eq!(learned(400, text, 65, &nothing), Some(64));
    for tools in [0, 1, 64] {
        assert_eq!(learned(400, text, tools, &nothing), None, "{tools}");
    }
    let role = br#"{"messages":[{"role":"MAXIMUM number of\ntools is 1"}]}"#;
    let quoted = "Invalid value: 'maximum number of tools is 1'. Supported values are: 'user'.";
    assert_eq!(learned(400, quoted, 2, &Asked::new(role, [])), None);
    assert_eq!(learned(400, quoted, 2, &nothing), Some(1));
    let both = format!("{quoted} The maximum number of tools is 3.");
    assert_eq!(learned(400, &both, 5, &Asked::new(role, [])), Some(3));
}

#[test]
fn the_newest_word_counts_for_a_day() {
    let word = |limit, at| Learned { limit, at };
    let told = |limit, at| ToolEvent::Told(word(limit, at));
    let (state, changed) = ToolLimit::default().step(told(64, T0));
    assert!(changed);
    assert_eq!(state.known(T0.plus(KEEP_MS - 1)), Some(word(64, T0)));
    assert_eq!(state.known(T0.plus(KEEP_MS)), None);
    assert_eq!(state.step(told(32, T0)), (state, false));
    let (state, _) = state.step(told(256, T0.plus(1)));
    assert_eq!(state.known(T0.plus(1)).unwrap().limit, 256);
    assert_eq!(state.step(told(0, T0.plus(2))), (state, false));
}

#[test]
fn what_is_forgotten_stays_forgotten() {
    let told = |at| ToolEvent::Told(Learned { limit: 64, at });
    let forget = |at| ToolEvent::Forget { at };
    let (state, _) = ToolLimit::default().step(told(T0.plus(5)));
    assert_eq!(state.step(forget(T0)), (state, false), "told later");
    let (state, changed) = state.step(forget(T0.plus(9)));
    assert!(changed && state.known(T0.plus(9)).is_none());
    assert_eq!(state.step(forget(T0.plus(9))), (state, false));
    assert_eq!(state.step(told(T0.plus(5))), (state, false), "told again");
    assert!(state.step(told(T0.plus(10))).1);
}
