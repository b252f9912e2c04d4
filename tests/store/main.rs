//! The Redis mirror against real servers: alone, watched by sentinels, in a
//! cluster; whole, broken, killed, frozen and full of other people's data.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::arithmetic_side_effects,
    reason = "a test fails by panicking, and its helpers are part of it"
)]

mod away;
mod conformance;
mod failover;
mod foreign;
mod harness;
mod log;
