//! The durable, ordered copy of shared state.
