//! One line in ten seconds.

use shared_proto::clock::Millis;

use super::Seldom;

#[test]
fn one_every_ten_seconds() {
    let seldom = Seldom::default();
    for (at, due) in [
        (0, true),
        (1, false),
        (9_999, false),
        (10_001, true),
        (10_002, false),
        // The clock was set back.
        (5_000, true),
    ] {
        assert_eq!(seldom.due(Millis::from_epoch_ms(at)), due, "at {at}");
    }
}
