//! The pure core of the routing cluster, in the order a request meets it.
//!
//! | stage | module | what it decides |
//! |---|---|---|
//! | configure | [`config`], [`catalogue`] | what the operator wrote, typed; which providers exist |
//! | pick | [`pick`], [`pin`] | in which order targets are tried; which connection a session stays with |
//! | dispatch | [`sse`], [`stream`], [`answer`] | what an upstream's bytes mean, and when a stream is committed |
//! | share | [`egress`] | which connections leave by one address, and rest for its limits together |
//! | foresee | [`quota`] | what answers tell of an account's quota, and what follows before it is spent |
//! | classify | [`restate`], [`classify`], [`rotation`], [`hint`], [`tools`], [`emergency`] | what a failure means, whose fault it is, when it ends |
//! | transition | [`health`], [`lockout`], [`lane`], [`breaker`] | the state machines of connections and providers |
//! | lease | [`lease`] | who has a connection to itself, and what may go out under it |
//! | refresh | [`token`] | OAuth tokens: when, by whom, how they are stored |
//! | mirror | [`mirror`], [`roster`] | the durable, ordered copy of that state; who shares it |
//! | coordinate | [`leader`] | which coordinator does what one of them has to do |
//!
//! Nothing here reads a clock, draws a random number or looks at the
//! environment: `now` and the rest are arguments. Only [`mirror`] does I/O.

pub mod answer;
pub mod breaker;
pub mod catalogue;
pub mod classify;
pub mod clock;
pub mod config;
pub mod egress;
pub mod emergency;
pub mod failure;
pub mod gate;
pub mod health;
pub mod hint;
pub mod id;
pub mod lane;
pub mod leader;
pub mod lease;
pub mod lockout;
pub mod mirror;
pub mod pick;
pub mod pin;
pub mod protocol;
pub mod quota;
pub mod restate;
pub mod roster;
pub mod rotation;
#[cfg(test)]
mod simulation;
pub mod sse;
pub mod step;
pub mod stream;
pub mod token;
pub mod tools;
