//! End-to-end tests of the router through its real binary: one file a subject.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::arithmetic_side_effects,
    reason = "a test fails by panicking"
)]

mod harness;
