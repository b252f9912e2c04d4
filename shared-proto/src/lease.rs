//! Exclusive session leases: one owner has one connection to itself.
//!
//! A lease is two records: the owner's ([`Lease`]) and the connection's
//! ([`Bound`]), which change in one transaction or not at all. Whoever wants
//! to change them reads, judges by a pure function, and commits with
//! compare-and-set; who loses the race judges again by what won. No store
//! knows what a lease is, and no node has to be asked.
//!
//! | what | module |
//! |---|---|
//! | owner, generation | [`token`] |
//! | the records, states, reasons | [`record`] |
//! | codes and bodies of refusals | [`code`] |
//! | acquire and transition | [`acquire()`], [`transition`] |
//! | renew, status | [`renew()`], [`status`] |
//! | release, invalidate, expire | [`release`], [`invalidate`], [`expire`] |
//! | checks of a request | [`select`], [`take`], [`fenced`] |
//! | whether a connection is free | [`freedom`] |
//! | cutting what is in flight | [`watch()`] |
//! | a node's view | [`table`] |
//! | headers, actions, answers | [`lifecycle`] |
//! | routes that a lease can't use | [`route`] |
//!
//! # What holds
//!
//! 1. At no time are two leases of one connection active, nor two of one owner.
//! 2. What passes the fence has an active lease at that moment, by the store's
//!    clock.
//! 3. A connection goes to another owner only when nothing is in flight under
//!    the lease before, or the grace since its end has passed.
//! 4. A generation never comes again, not even from a store that lost its last
//!    writes: it is at least the time in ms. (A failover takes longer than
//!    `Mirror::now` may be behind the store's clock.)
//! 5. Time is the store's. [`Mirror::now`] is never ahead of it, so nobody
//!    takes a lease for over too early; and who takes one for alive a little
//!    too long meets the guard, which the store judges by its own clock.
//!
//! This stands on two things that a store does beside [`Mirror`]'s own rules: it
//! keeps what has expired for longer than an operation takes (a minute is
//! plenty), and what was sent to it before a failover is not sent again to its
//! successor.
//!
//! A store that loses acknowledged writes forgets leases with them, and the
//! requests in flight under them: then 3 holds no longer for those, until the
//! nodes have seen it and cut them. `leases.minReplicas` is the remedy.
//!
//! # The driver's part
//!
//! Every operation is a function of what was [`Seen`], the request and `now`,
//! and comes to a [`Decision`]. The driver is one loop for all of them:
//!
//! ```
//! use shared_proto::lease::{Decision, LeaseCode, MAX_ROUNDS, Outcome, Seen};
//! use shared_proto::clock::Millis;
//! use shared_proto::mirror::commit::TransactError;
//! use shared_proto::mirror::hold::Pool;
//! use shared_proto::mirror::{LoadError, Mirror};
//!
//! async fn drive(
//!     mirror: &dyn Mirror,
//!     mut seen: Seen<'_>,
//!     judge: impl Fn(&Seen<'_>, Millis) -> Decision,
//! ) -> Outcome {
//!     let unavailable = LeaseCode::ServiceUnavailable;
//!     for _ in 0..MAX_ROUNDS {
//!         match judge(&seen, mirror.now()) {
//!             Decision::Done(outcome) => return outcome,
//!             Decision::Load(wanted) => {
//!                 // All records at once; then what is in flight, not before.
//!                 for key in &wanted.records {
//!                     match mirror.load(key).await {
//!                         Ok(record) => seen.record(key, record.as_ref()),
//!                         Err(LoadError::Unreadable(_)) => seen.unreadable(key),
//!                         Err(LoadError::Unreachable(_)) => return Err(unavailable.into()),
//!                     }
//!                 }
//!                 for connection in &wanted.in_flight {
//!                     let pool = Pool::Leased(connection.clone());
//!                     let holders = mirror.holders(&pool).await.map_err(|_| unavailable)?;
//!                     seen.in_flight(connection, holders.len());
//!                 }
//!             }
//!             Decision::Commit(planned) => {
//!                 match mirror.transact(planned.transaction.clone()).await {
//!                     Ok(committed) => return planned.made(&committed),
//!                     Err(TransactError::Conflict { newest, at }) => seen.conflict(&newest, at),
//!                     Err(_) => return Err(unavailable.into()),
//!                 }
//!             }
//!         }
//!     }
//!     Err(unavailable.into())
//! }
//! # use std::sync::Arc;
//! # use shared_proto::clock::ManualClock;
//! # use shared_proto::id::ApiKeyId;
//! # use shared_proto::lease::{Acquire, Candidate, LeaseRules, LeaseTable, lifecycle};
//! # use shared_proto::mirror::embedded::Embedded;
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! # let clock = Arc::new(ManualClock::at(Millis::from_epoch_ms(10_000)));
//! # let mirror = Embedded::memory("omniroute", clock)?;
//! # let token = format!("vlo_{}", "A".repeat(43));
//! # let owner = lifecycle::owner(Some(token.as_bytes())).map_err(|code| code.as_str())?;
//! # let key = ApiKeyId::from("team");
//! # let candidates = [Candidate { connection: "acme-1".into(), provider: "acme".into() }];
//! # let ask = Acquire { owner: &owner, api_key: &key, candidates: &candidates, none: LeaseCode::NoEligibleConnection };
//! # let (table, rules) = (LeaseTable::new(), LeaseRules::default());
//! # let one = drive(&mirror, Seen::new(&table), |seen, now| {
//! #     shared_proto::lease::acquire(seen, &ask, &rules, now)
//! # }).await;
//! # assert_eq!(one.map(|binding| binding.lease.generation.number()), Ok(10_000));
//! # Ok::<(), Box<dyn std::error::Error>>(()) })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What it has to keep to:
//!
//! - **The loads of one [`Wanted`] may go out together; the counts go out after
//!   the records they belong to have been answered**, in a later round. A count
//!   from before is worth nothing, since a request may have come into flight.
//! - **One deadline** over the whole loop (1 s); at the deadline, after
//!   [`MAX_ROUNDS`], and on every error of the store, the answer is
//!   [`LeaseCode::ServiceUnavailable`] and nothing is sent upstream. A
//!   transaction without an answer may have been made: the client asks again,
//!   and an acquire is then answered with the lease that stands. The same for
//!   [`TransactError::Replicas`].
//! - **A request** calls [`select`], chooses with the bound connection first,
//!   calls [`transition`] if that one can't serve it, and immediately before
//!   *each* attempt asks the store for [`take`]. On [`Taken::Fenced`] it judges
//!   [`fenced`] and asks again with the revision that this gives; after
//!   [`MAX_FENCES`] of them it answers [`LeaseCode::ServiceUnavailable`]. Once it
//!   has its place it asks [`watch()`] before the first byte leaves, with the time
//!   before the question as `passed_at`: the node may have slept meanwhile. The
//!   place is kept (every third of its lifetime) until the last byte, then
//!   given back. Refusals here touch no connection's health.
//! - **In flight**, each request is judged by [`watch()`] when the table
//!   changes and at the time that it says, at least ten times a second; one
//!   that is [`Verdict::Cut`] is cut, its place given back, and told
//!   [`LeaseCode::Lost`]. One whose place the store no longer has (a `keep`
//!   that answers false) takes it again with the guard or is cut.
//! - **The table** is kept from snapshot and log, and may be told of own
//!   commits early ([`LeaseTable::put`]). After a gap or a store that went back
//!   it is made anew from the snapshot.
//! - **Keys**: a node that sees a key go from its configuration, or lose its
//!   scope, calls [`invalidate`] with [`EndReason::ManagedKeyRevoked`] for
//!   [`LeaseTable::of_key`]; one that merely doesn't know a key does nothing,
//!   since another node's configuration may be newer.
//! - **Expiry** needs nobody. [`expire`] for [`LeaseTable::lapsed`] tells it to
//!   everybody early; records past their own expiry may be deleted.
//!
//! [`Mirror`]: crate::mirror::Mirror
//! [`Mirror::now`]: crate::mirror::Mirror::now
//! [`Taken::Fenced`]: crate::mirror::hold::Taken::Fenced
//! [`TransactError::Replicas`]: crate::mirror::commit::TransactError::Replicas

mod acquire;
pub mod code;
mod decide;
mod end;
mod fence;
mod handover;
pub mod lifecycle;
pub mod record;
mod renew;
pub mod route;
mod rules;
mod seen;
pub mod table;
#[cfg(test)]
pub(crate) mod tests;
pub mod token;
mod watch;

pub use acquire::{Acquire, Transition, acquire, transition};
pub use code::{Capacity, LeaseCode, Refusal};
pub use decide::{Binding, Decision, Outcome, Planned};
pub use end::{expire, invalidate, release};
pub use fence::{Presented, fenced, select, take};
pub use handover::{Candidate, Freedom, freedom};
pub use record::{Bound, End, EndReason, Lease, LeaseState};
pub use renew::{renew, status};
pub use rules::{
    DEFAULT_HANDOVER_GRACE_MS, DEFAULT_TTL_MS, LeaseRules, MAX_HANDOVER_GRACE_MS, MAX_TTL_MS,
    MIN_TTL_MS,
};
pub use seen::{Found, Seen, Stored, Wanted};
pub use table::LeaseTable;
pub use token::{Generation, LeaseId, OwnerHash, OwnerToken};
pub use watch::{Flight, Verdict, watch};

/// Connections whose records one acquire reads at most; of the rest the table
/// is believed.
pub const MAX_ASKED: usize = 32;

/// Rounds of reading and committing of one operation at most: each candidate
/// may have to be read, counted and lost to somebody else.
pub const MAX_ROUNDS: usize = 128;

/// How often one attempt asks the fence at most: it only asks again because
/// the lease was renewed meanwhile.
pub const MAX_FENCES: usize = 8;
