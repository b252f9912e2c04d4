//! What is learned of tools, and for how long.

use super::{KEEP_MS, Learned, ToolLimit, stated};
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
        "tools are limited; see the maximum in our documentation. Error 4711",
        "maximum number of tools is 99999999999999999999",
        "",
    ] {
        assert_eq!(stated(400, text), None, "{text}");
    }
}

#[test]
fn the_newest_word_counts_for_a_day() {
    let word = |limit, at| Learned { limit, at };
    let (state, changed) = ToolLimit::default().step(word(64, T0));
    assert!(changed);
    assert_eq!(state.known(T0.plus(KEEP_MS - 1)), Some(word(64, T0)));
    assert_eq!(state.known(T0.plus(KEEP_MS)), None);
    assert_eq!(state.step(word(32, T0)), (state, false));
    let (state, _) = state.step(word(256, T0.plus(1)));
    assert_eq!(state.known(T0.plus(1)).unwrap().limit, 256);
    assert_eq!(state.step(word(0, T0.plus(2))), (state, false));
}
