//! Commit, conflict and re-application, with the real breaker machine.

use shared_proto::breaker::{BreakerEvent, BreakerRules, FailureKind, ProviderBreaker};
use shared_proto::clock::Millis;
use shared_proto::config::Settings;
use shared_proto::failure::Profile;
use shared_proto::mirror::commit::Expected;
use shared_proto::mirror::record::Revision;

use super::{MAX_PENDING, Replica};
use crate::actor::machine::Machine as _;

fn rules() -> BreakerRules {
    let rules = BreakerRules::new(&Settings::default(), Profile::ApiKey);
    BreakerRules {
        failure_threshold: 1_000,
        degradation_threshold: 999,
        ..rules
    }
}

fn at(ms: u64) -> Millis {
    Millis::from_epoch_ms(1_000_000).plus(ms)
}

fn failed(connection: &str, ms: u64) -> BreakerEvent {
    BreakerEvent::Failed {
        started_at: at(ms),
        connection: connection.into(),
        kind: FailureKind::Transient,
        probe_generation: None,
    }
}

fn replica() -> Replica<ProviderBreaker> {
    Replica::new(ProviderBreaker::default(), Expected::Absent)
}

#[test]
fn one_commit_at_a_time_and_the_next_carries_what_came_meanwhile() {
    let mut replica = replica();
    assert!(replica.begin_commit().is_none());
    assert!(replica.apply(&failed("a", 0), at(0), &rules()).0);
    let (on, state) = replica.begin_commit().unwrap();
    assert_eq!((on, state.failure_count), (Expected::Absent, 1));
    replica.apply(&failed("b", 1), at(1), &rules());
    assert!(replica.begin_commit().is_none(), "one is under way");
    replica.committed(Revision::new(7));
    let (on, state) = replica.begin_commit().unwrap();
    assert_eq!(on, Expected::Revision(Revision::new(7)));
    assert_eq!(state.failure_count, 2);
    replica.committed(Revision::new(8));
    assert!(replica.begin_commit().is_none(), "nothing is left");
}

#[test]
fn after_a_conflict_an_event_that_the_other_node_saw_too_counts_once() {
    let mut replica = replica();
    replica.apply(&failed("a", 0), at(0), &rules());
    replica.apply(&failed("b", 1), at(1), &rules());
    replica.begin_commit().unwrap();
    // Another node counted the failure of `a` and committed first.
    let theirs = ProviderBreaker::default()
        .apply(&failed("a", 0), at(0), &rules())
        .state;
    replica.rebase(theirs, Expected::Revision(Revision::new(3)), &rules());
    assert_eq!(replica.state().failure_count, 2);
    let (on, state) = replica.begin_commit().unwrap();
    assert_eq!(on, Expected::Revision(Revision::new(3)));
    assert_eq!(state.failure_count, 2);
}

#[test]
fn a_failed_commit_is_due_again_with_everything_in_it() {
    let mut replica = replica();
    replica.apply(&failed("a", 0), at(0), &rules());
    replica.begin_commit().unwrap();
    replica.failed();
    assert_eq!(replica.begin_commit().unwrap().1.failure_count, 1);
}

#[test]
fn what_waits_is_bounded_whether_a_commit_is_under_way_or_not() {
    for committing in [false, true] {
        let mut replica = replica();
        for n in 0..200_u64 {
            replica.apply(&failed(&format!("c{n}"), n), at(n), &rules());
            if committing && n % 70 == 0 {
                replica.begin_commit();
            }
            assert!(replica.pending.len() <= MAX_PENDING);
            assert!(replica.in_flight.unwrap_or(0) <= replica.pending.len());
        }
        assert_eq!(replica.state().failure_count, 200, "the state has them all");
    }
}
