//! Combos: named lists of targets.

use crate::id::{ConnectionId, ProviderId};

use super::settings::{OwnWaits, QueueRules};

/// A named list of targets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Combo {
    /// What clients put into `model`.
    pub name: String,
    /// How targets are ordered.
    pub strategy: StrategyName,
    /// The targets, in file order.
    pub targets: Vec<Target>,
    /// How its requests wait for a slot of a full connection.
    pub queue: QueueRules,
    /// What it says of that itself.
    pub(super) waits: OwnWaits,
}

/// The strategies this version knows; more come beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StrategyName {
    /// Listed order.
    Priority,
}

/// One target of a combo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Whose model.
    pub provider: ProviderId,
    /// The upstream's name of the model.
    pub model: String,
    /// One connection, or any of the provider's.
    pub connection: Option<ConnectionId>,
    /// For the strategies that draw.
    pub weight: u32,
}
