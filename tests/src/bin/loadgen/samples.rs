//! Times of single requests, and what is said about many of them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Quantiles in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Quantiles {
    pub(crate) p50: u32,
    pub(crate) p99: u32,
    pub(crate) max: u32,
}

impl Quantiles {
    /// The quantiles of `micros`, each the value of a real sample; `None` without samples.
    pub(crate) fn of(mut micros: Vec<u32>) -> Option<Self> {
        micros.sort_unstable();
        Some(Self {
            p50: at_percent(&micros, 50)?,
            p99: at_percent(&micros, 99)?,
            max: at_percent(&micros, 100)?,
        })
    }
}

/// The smallest value that `percent` of the sorted samples do not exceed.
fn at_percent(sorted: &[u32], percent: usize) -> Option<u32> {
    let rank = sorted.len().saturating_mul(percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied()
}

/// Whole microseconds, saturating at a bit over an hour.
pub(crate) fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

/// The middle value; the mean of the two middle ones; `None` without values.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    if values.len() % 2 == 1 {
        return Some(upper);
    }
    let lower = *values.get((values.len() / 2).saturating_sub(1))?;
    Some(f64::midpoint(lower, upper))
}

#[cfg(test)]
mod tests;
