//! What a connection's health remembers for the gate.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{ClassRule, Met, RotationClass};
use crate::clock::Millis;

/// Failures of one class that are remembered: as many as a threshold can ask for.
const MOST: usize = 100;

/// When failures were counted, by class, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RotationCounts(BTreeMap<RotationClass, Vec<Millis>>);

impl RotationCounts {
    /// Whether nothing is counted.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many of `class` count at `now`.
    pub fn within(&self, class: RotationClass, window_ms: u64, now: Millis) -> u32 {
        let times = self.times(class).iter();
        let count = times.filter(|at| now.since(**at) < window_ms).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// The how manieth of `class` a failure is, whether it is counted already or not.
    pub(super) fn nth(&self, class: RotationClass, window_ms: u64, met: Met) -> u32 {
        let counted = self.within(class, window_ms, met.now);
        if self.knows(class, met.began) {
            counted.max(1)
        } else {
            counted.saturating_add(1)
        }
    }

    /// The same with a failure of an attempt that began then; `None` where it
    /// was under way when the last was counted.
    pub(crate) fn with(
        &self,
        class: RotationClass,
        (began, now): (Millis, Millis),
        rule: &ClassRule,
    ) -> Option<Self> {
        if self.knows(class, began) {
            return None;
        }
        let mut next = self.clone();
        let times = next.0.entry(class).or_default();
        times.retain(|at| now.since(*at) < rule.window_ms);
        times.push(now.max(began));
        let surplus = times.len().saturating_sub(MOST);
        times.drain(..surplus);
        Some(next)
    }

    /// What is left after an attempt that began then has succeeded.
    pub(crate) fn after_success(&self, began: Millis) -> Self {
        let mut next = self.clone();
        for times in next.0.values_mut() {
            times.retain(|at| *at > began);
        }
        next.0.retain(|_, times| !times.is_empty());
        next
    }

    /// Whether an attempt that began then was under way when the last was counted.
    fn knows(&self, class: RotationClass, began: Millis) -> bool {
        self.times(class).last().is_some_and(|last| began <= *last)
    }

    fn times(&self, class: RotationClass) -> &[Millis] {
        self.0.get(&class).map_or(&[], Vec::as_slice)
    }
}
