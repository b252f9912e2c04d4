//! One owner per thing: each connection's health and each provider's breaker
//! is an actix actor, the only writer of its state.
//!
//! An owner applies events in order, publishes the new state as a read-only
//! view, and commits it to the mirror. Requests read views and tell owners;
//! nobody asks an owner on the way to a healthy upstream.
//!
//! | file | what |
//! |---|---|
//! | [`machine`] | what a state machine has to offer to be owned |
//! | [`owner`] | the actor: events in, view and commits out, one timer |
//! | [`replica`] | the pure part of commit, conflict and re-application |

pub(crate) mod machine;
pub(crate) mod owner;
pub(crate) mod replica;
