//! Backoff and jitter.

use super::*;

#[test]
fn waits_double_up_to_their_bound() {
    let backoff = Backoff::between(Duration::from_secs(1), Duration::from_secs(8));
    let seconds: Vec<u64> = (0..6).map(|n| backoff.after(n).as_secs()).collect();
    assert_eq!(seconds, [1, 2, 4, 8, 8, 8]);
    assert_eq!(backoff.after(u32::MAX), Duration::from_secs(8));
}

#[test]
fn jitter_stays_within_half_of_it() {
    let wait = Duration::from_secs(1);
    for random in [0, 1, 499, 500, 1000, 1001, u64::MAX] {
        let spread = spread(wait, random);
        assert!(spread >= wait / 2 && spread <= wait * 3 / 2, "{spread:?}");
    }
    assert_eq!(spread(Duration::MAX, 1000), Duration::from_nanos(u64::MAX));
}
