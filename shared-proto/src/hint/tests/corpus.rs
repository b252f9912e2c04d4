//! Every recorded refusal that announces a reset.

use super::super::{corpus, reset_hint};
use super::BOUNDS;

#[test]
fn recorded_refusals() {
    let mut misses = Vec::new();
    for entry in corpus::entries() {
        let Some(expected) = entry.expected.retry_after_ms else {
            continue;
        };
        let headers = entry.headers();
        let hint = reset_hint(
            &entry.answer(&headers),
            entry.reason(),
            &BOUNDS,
            entry.now(),
        );
        let got = hint.map(|hint| hint.wait_ms);
        if got.is_none_or(|ms| ms.abs_diff(expected) > 1000) {
            misses.push(format!("{}: {got:?}, not {expected}", entry.id));
        }
    }
    assert!(misses.is_empty(), "{misses:#?}");
}
