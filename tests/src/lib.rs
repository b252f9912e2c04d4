//! What the end-to-end tests stand on: the real binary as a child process, an
//! upstream that misbehaves to order, and clients.
//!
//! | module | what it gives |
//! |---|---|
//! | [`node`] | a `router-node` process with its own directory, port and log |
//! | [`config`] | a configuration file, built piece by piece |
//! | [`client`] | HTTP requests against a node, whole or streamed, and raw bytes |
//! | [`upstream`], [`reply`] | the scripted upstream and what it answers |
//! | [`dialect`] | requests and answers of the three client protocols |
//! | [`events`] | a strict reader of server-sent events |
//! | [`metrics`] | a reader of the Prometheus text format that objects to bad style |
//! | [`sdk`] | the official client SDKs, as child processes |
//! | [`wait`] | waiting for a state, with a deadline, instead of sleeping |
//! | [`cluster`], [`coordinator`] | several nodes and coordinators on one Redis |
//! | [`redis`], [`sentinel`], [`redis_cluster`] | real Redis servers, each with its own directory |
//! | [`resp`], [`port`] | looking into a Redis; ports that stay taken |
//! | [`proxy`] | a forward proxy over HTTP or SOCKS5 that notes whom it was asked for |
//! | [`cut`] | a TCP proxy that delays, swallows, resets and refuses to order |
//! | [`forward`], [`tls`] | a forward proxy that behaves to order; TLS in front of anything |
//! | [`lease`] | a client of session leases |
//! | [`tokens`] | a token endpoint that rotates, refuses, dawdles and loses to order |
//! | [`chart`], [`pod`] | the Helm chart as the real helm renders it; its pods as processes |
//! | [`balancer`] | nginx as `deploy/compose` has it, in front of routers that come and go |
//!
//! A helper that finds the world not as a test needs it panics: it is the test
//! that fails then.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::arithmetic_side_effects,
    clippy::return_self_not_must_use,
    reason = "a harness fails by panicking"
)]

pub mod balancer;
pub mod chart;
pub mod client;
pub mod cluster;
pub mod config;
pub mod coordinator;
pub mod cut;
pub mod dialect;
pub mod events;
pub mod lease;
pub mod metrics;
pub mod node;
pub mod pod;
pub mod port;
pub mod proxy;
pub mod redis;
pub mod redis_cluster;
pub mod reply;
pub mod resp;
pub mod sdk;
pub mod sentinel;
pub mod tls;
pub mod tokens;
pub mod upstream;
pub mod wait;
