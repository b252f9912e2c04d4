//! The store's time: a lower bound that never goes back.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, advance};

use super::StoreTime;
use crate::clock::{ManualClock, Millis};

fn time() -> StoreTime {
    StoreTime::new(Arc::new(ManualClock::at(Millis::from_epoch_ms(77))))
}

fn ms(time: &StoreTime) -> u64 {
    time.now().as_epoch_ms()
}

async fn pass(ms: u64) {
    advance(Duration::from_millis(ms)).await;
}

#[tokio::test(start_paused = true)]
async fn it_begins_with_a_guess_and_goes_on_from_what_was_heard() {
    let time = time();
    assert_eq!(ms(&time), 77);
    pass(10).await;
    let asked = Instant::now();
    pass(20).await;
    time.heard(50_000_999, asked);
    assert_eq!(ms(&time), 50_000, "as if it had been told this moment");
    pass(5).await;
    assert_eq!(ms(&time), 50_005);
}

#[tokio::test(start_paused = true)]
async fn a_quicker_answer_is_the_better_bound_and_a_slower_one_takes_nothing_back() {
    let time = time();
    let asked = Instant::now();
    pass(100).await;
    // Told 90 ms ago in truth: the clock stands at 50,090 ms.
    time.heard(50_000_000, asked);
    assert_eq!(ms(&time), 50_000);
    let asked = Instant::now();
    time.heard(50_090_000, asked);
    assert_eq!(ms(&time), 50_090);
    let asked = Instant::now();
    pass(100).await;
    time.heard(50_100_000, asked);
    assert_eq!(ms(&time), 50_190);
}

#[tokio::test(start_paused = true)]
async fn it_stands_still_until_a_clock_that_was_set_back_has_caught_up() {
    let time = time();
    time.heard(60_000_000, Instant::now());
    assert_eq!(ms(&time), 60_000);
    time.heard(59_000_000, Instant::now());
    assert_eq!(ms(&time), 60_000);
    pass(999).await;
    assert_eq!(ms(&time), 60_000);
    pass(2).await;
    assert_eq!(ms(&time), 60_001);
}

#[tokio::test(start_paused = true)]
async fn any_number_is_taken() {
    let time = time();
    let mut latest = 0;
    for us in [0, 1, u64::MAX, 5] {
        time.heard(us, Instant::now());
        pass(1).await;
        assert!(ms(&time) >= latest);
        latest = ms(&time);
    }
    assert_eq!(latest, u64::MAX / 1_000);
}
