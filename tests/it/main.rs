//! End-to-end tests of the router through its real binary: one file a subject.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::arithmetic_side_effects,
    reason = "a test fails by panicking"
)]

mod background;
mod bad_input;
mod breaker;
mod cases;
mod cluster_backends;
mod cluster_cooldown;
mod cluster_input;
mod cluster_kill;
mod cluster_nodes;
mod cluster_outage;
mod cluster_partition;
mod cluster_probe;
mod cluster_redis;
mod cluster_script;
mod cluster_settings;
mod cluster_state;
mod configuration;
mod cooldown;
mod coordinator_absence;
mod coordinator_duties;
mod coordinator_election;
mod coordinator_leader;
mod degrade;
mod deploy_compose;
mod deploy_image;
mod disconnect;
mod drain;
mod echoed;
mod egress;
mod egress_cluster;
mod egress_lock;
mod emergency;
mod errors;
mod expired_retry;
mod expired_retry_rules;
mod explained;
mod failover;
mod hardening;
mod harness;
mod harness_redis;
mod health_command;
mod helm_guide;
mod helm_render;
mod helm_rollout;
mod helm_run;
mod keys;
mod lease_capacity;
mod lease_clock;
mod lease_errors;
mod lease_failover;
mod lease_handover;
mod lease_hygiene;
mod lease_inference;
mod lease_lifecycle;
mod lease_loss;
mod lease_queue;
mod lease_race;
mod lease_revocation;
mod lease_store;
mod lease_transition;
mod live_test;
mod live_test_rules;
mod lockouts;
mod management;
mod memory;
mod methods;
mod metrics;
mod passthrough;
mod pins_key;
mod pins_life;
mod provider_cooldown;
mod provider_cooldown_rules;
mod proxies;
mod proxy_ways;
mod refusals;
mod resilience_api;
mod resilience_routes;
mod rotation;
mod sdk;
mod secrets;
mod settings;
mod simulated;
mod slots_cap;
mod slots_crash;
mod start;
mod store;
mod stream_after;
mod stream_before;
mod stream_wire;
mod telemetry;
mod tokens_cluster;
mod tokens_refresh;
mod tokens_stored;
mod tool_limit;
mod traces;
mod usage_wall;
mod usage_wall_rules;
