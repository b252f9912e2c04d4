//! End-to-end tests of the router through its real binary: one file a subject.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::arithmetic_side_effects,
    reason = "a test fails by panicking"
)]

mod breaker;
mod configuration;
mod cooldown;
mod disconnect;
mod errors;
mod failover;
mod harness;
mod keys;
mod passthrough;
mod start;
mod stream_after;
mod stream_before;
mod stream_wire;
