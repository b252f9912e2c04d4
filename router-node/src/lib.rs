//! A router node: the HTTP surface, the plan that owns attempts, the actors
//! that own state.
//!
//! | stage | module |
//! |---|---|
//! | accept, authenticate, read | `http` |
//! | resolve, pick, dispatch, classify, tell the owners | `request` (READ FIRST) |
//! | call an upstream | `upstream`, `simulated` |
//! | own the state of connections and breakers | `actor` |
//! | session leases: fence, table, what is in flight | `lease` |
//! | slots of capped connections; pins of sessions | `slots`, `pins` |
//! | what answers tell of quotas | `quota` |
//! | OAuth tokens: present, refresh, store | `token` |
//! | what requests read | `routing` |
//! | put together, reload, stop | `node` |
//! | log, metrics, recent requests, traces | `observe` |

#[cfg(test)]
mod absent;
mod actor;
pub mod cli;
pub mod config;
mod egress;
mod http;
mod lease;
pub mod node;
mod observe;
mod pins;
mod quota;
mod request;
mod routing;
mod simulated;
mod slots;
mod timer;
mod token;
mod upstream;
mod wall;
mod welcome;
