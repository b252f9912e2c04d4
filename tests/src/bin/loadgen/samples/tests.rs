//! Quantiles and medians by hand.

use std::time::Duration;

use super::{Quantiles, median, micros};

#[test]
fn quantiles_are_values_that_were_seen() {
    let hundred: Vec<u32> = (1..=100).rev().collect();
    let expected = Quantiles {
        p50: 50,
        p99: 99,
        max: 100,
    };
    assert_eq!(Quantiles::of(hundred), Some(expected));
    let single = Quantiles {
        p50: 7,
        p99: 7,
        max: 7,
    };
    assert_eq!(Quantiles::of(vec![7]), Some(single));
    assert_eq!(Quantiles::of(Vec::new()), None);
}

#[test]
fn the_median_is_in_the_middle() {
    assert_eq!(median(vec![]), None);
    assert_eq!(median(vec![3.0]), Some(3.0));
    assert_eq!(median(vec![9.0, 1.0, 2.0]), Some(2.0));
    assert_eq!(median(vec![4.0, 1.0, 2.0, 9.0]), Some(3.0));
}

#[test]
fn long_times_saturate() {
    assert_eq!(micros(Duration::from_millis(2)), 2000);
    assert_eq!(micros(Duration::from_secs(1 << 40)), u32::MAX);
}
