//! Order of targets, refusals by the reference's cases, and the index against a naive model.
#![expect(
    clippy::arithmetic_side_effects,
    reason = "small numbers chosen by the tests"
)]

mod ready;
mod refusal;
mod told;

use super::*;

#[test]
fn priority_is_the_listed_order() {
    let target = |model: &str, weight| Target {
        provider: "p".into(),
        model: model.into(),
        connection: None,
        weight,
    };
    let targets = [target("b", 1), target("a", 9), target("c", 5)];
    assert_eq!(order(StrategyName::Priority, &targets), [0, 1, 2]);
    assert!(order(StrategyName::Priority, &[]).is_empty());
}
