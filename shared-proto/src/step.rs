//! What one event makes of a state machine.

/// The result of one event on a state `S`, which tells whoever reported it an `O`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step<S, O> {
    /// The state to go on with.
    pub state: S,
    /// Whether it differs from the one before, that is, whether to commit it.
    pub changed: bool,
    /// What happened.
    pub outcome: O,
}
