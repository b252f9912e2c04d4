//! Which target is tried next, and what is said when none is left.
//!
//! | module | what it decides |
//! |---|---|
//! | this one | the order in which a strategy tries a combo's targets |
//! | [`ready`] | which connection of a provider is tried first |
//! | [`exclusion`] | why a target is not tried |
//! | [`refusal`] | the answer when every target was excluded or failed |
//! | [`told`] | of which of several failures that answer tells |

pub mod exclusion;
pub mod ready;
pub mod refusal;
#[cfg(test)]
mod tests;
pub mod told;

use crate::config::{StrategyName, Target};

pub use exclusion::{Exclusion, ExclusionReason};
pub use ready::ReadyIndex;
pub use refusal::Refusal;

/// The order in which `strategy` tries `targets`: indexes into the list, each
/// exactly once. Availability does not change the order; targets that may not
/// be used now are skipped when their turn comes.
pub fn order(strategy: StrategyName, targets: &[Target]) -> Vec<usize> {
    match strategy {
        StrategyName::Priority => (0..targets.len()).collect(),
    }
}
