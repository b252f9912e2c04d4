//! What every mirror backend has to pass.
//!
//! A backend says how its store is opened ([`Backend`]) and calls
//! [`mirror_conformance!`](crate::mirror_conformance) in a test module: each
//! check becomes a test of that name, on a fresh store. Stores that survive
//! their process add [`mirror_reopening!`](crate::mirror_reopening).

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::arithmetic_side_effects,
    reason = "a check fails by panicking, and counts to a few hundred"
)]

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

use super::Mirror;
use super::commit::{Commit, CommitError, Committed, Expected};
use super::key::{HEALTH, Key};
use super::record::{Body, Record};

mod access;
mod guards;
mod holds;
mod log;
mod quiet;
mod reopen;
mod transact;
mod turns;

pub use access::{
    any_id_is_a_key, big_records_are_refused, concurrent_increments_all_count,
    conflict_returns_the_newest, create_read_update_delete, expiry_is_carried,
    newer_versions_are_kept, revisions_never_repeat, time_does_not_go_back,
    unknown_kinds_are_carried,
};
pub use guards::{a_conflict_lists_all_that_is_named, expired_guards_do_not_hold, guards_fence};
pub use holds::{
    a_fence_sees_every_change_before, a_fenced_take_changes_nothing, giving_back_frees_at_once,
    holders_are_listed, holds_are_no_records, holds_have_bounds, holds_lapse, keeping_prolongs,
    many_holders_are_listed, taking_again_renews,
};
pub use log::{
    a_closed_store_is_unreachable, gap_after_trim, log_order_is_commit_order,
    snapshot_and_tail_see_every_change_once, tail_reads_on_from_any_position, tail_waits_for_news,
};
pub use quiet::{expired_quiet_records_conflict, quiet_records_are_only_loaded};
pub use reopen::{
    reopening_hides_no_change, reopening_keeps_everything_acknowledged,
    reopening_keeps_quiet_records, revisions_rise_over_reopening,
};
pub use transact::{
    a_failed_transaction_changes_nothing, a_transaction_is_made_whole,
    concurrent_transfers_conserve_the_sum, malformed_transactions_are_refused,
    the_log_tells_a_transaction_in_one_piece,
};
pub use turns::{a_limit_is_never_exceeded, the_queue_is_fair, waiters_lose_their_place};

/// A store under test.
pub trait Backend: Send + Sync {
    /// Opens it: an empty store the first time, and after [`Mirror::close`]
    /// the same one again.
    fn open(&self) -> BoxFuture<'_, Arc<dyn Mirror>>;

    /// How many entries its log keeps; some hundreds, so that trimming is quick.
    fn log_entries(&self) -> u64;
}

/// Makes a test of each check that every backend has to pass, or of those
/// named after a semicolon. The expression is evaluated for each test.
#[macro_export]
macro_rules! mirror_conformance {
    ($backend:expr; $($check:ident),+ $(,)?) => {$(
        #[tokio::test]
        async fn $check() {
            $crate::mirror::conformance::$check(&$backend).await;
        }
    )+};
    ($backend:expr) => {
        $crate::mirror_checks!([$crate::mirror_conformance] $backend);
    };
}

/// Hands the names of all checks that every backend has to pass to a macro,
/// after what else it is given and a semicolon.
#[macro_export]
macro_rules! mirror_checks {
    ([$($then:tt)+] $($given:tt)*) => {
        $($then)+! {
            $($given)*;
            a_closed_store_is_unreachable,
            a_conflict_lists_all_that_is_named,
            a_failed_transaction_changes_nothing,
            a_fence_sees_every_change_before,
            a_fenced_take_changes_nothing,
            a_limit_is_never_exceeded,
            a_transaction_is_made_whole,
            any_id_is_a_key,
            big_records_are_refused,
            concurrent_increments_all_count,
            concurrent_transfers_conserve_the_sum,
            conflict_returns_the_newest,
            create_read_update_delete,
            expired_guards_do_not_hold,
            expired_quiet_records_conflict,
            expiry_is_carried,
            gap_after_trim,
            giving_back_frees_at_once,
            guards_fence,
            holders_are_listed,
            holds_are_no_records,
            holds_have_bounds,
            holds_lapse,
            keeping_prolongs,
            log_order_is_commit_order,
            malformed_transactions_are_refused,
            many_holders_are_listed,
            newer_versions_are_kept,
            quiet_records_are_only_loaded,
            revisions_never_repeat,
            snapshot_and_tail_see_every_change_once,
            tail_reads_on_from_any_position,
            tail_waits_for_news,
            taking_again_renews,
            the_log_tells_a_transaction_in_one_piece,
            the_queue_is_fair,
            time_does_not_go_back,
            unknown_kinds_are_carried,
            waiters_lose_their_place,
        }
    };
}

/// Makes a test of each check on a store that is closed and opened again.
#[macro_export]
macro_rules! mirror_reopening {
    ($backend:expr) => {
        $crate::mirror_conformance!(
            $backend;
            reopening_hides_no_change,
            reopening_keeps_everything_acknowledged,
            reopening_keeps_quiet_records,
            revisions_rise_over_reopening,
        );
    };
}

/// The state that the checks keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Count {
    count: u64,
}

impl Body for Count {
    const KIND: &'static str = HEALTH;
    const VERSION: u16 = 1;
}

fn key(id: &str) -> Key {
    Key::Health(id.into())
}

fn put(id: &str, expected: Expected, count: u64) -> Commit {
    Commit::put(key(id), expected, &Count { count }).unwrap()
}

fn count_in(record: &Record) -> u64 {
    record.decode::<Count>().unwrap().count
}

async fn count(mirror: &dyn Mirror, id: &str) -> Option<u64> {
    let record = mirror.load(&key(id)).await.unwrap();
    record.map(|record| count_in(&record))
}

/// Adds one, whatever others do meanwhile; how an actor applies its event.
async fn increment(mirror: &dyn Mirror, id: &str) -> Committed {
    let mut expected = Expected::Absent;
    let mut next = 1;
    loop {
        match mirror.commit(put(id, expected, next)).await {
            Ok(done) => return done,
            Err(CommitError::Conflict { newest }) => {
                (expected, next) = newest.map_or((Expected::Absent, 1), |record| {
                    (Expected::Revision(record.revision), count_in(&record) + 1)
                });
            }
            Err(other) => panic!("{other}"),
        }
    }
}

/// How long a check waits for what has to come, in ms of the store's time.
const DEADLINE_MS: u64 = 60_000;

/// Asks again and again until there is an answer, or fails at the deadline.
async fn until<T>(mirror: &dyn Mirror, what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = mirror.now().plus(DEADLINE_MS);
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(mirror.now() < deadline, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The newest record that a conflict came with.
fn newest(outcome: Result<Committed, CommitError>) -> Option<Record> {
    match outcome {
        Err(CommitError::Conflict { newest }) => newest,
        other => panic!("no conflict: {other:?}"),
    }
}
