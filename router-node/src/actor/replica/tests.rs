//! Commit, conflict and re-application, with the real breaker machine.

use shared_proto::breaker::{BreakerEvent, BreakerRules, FailureKind, ProviderBreaker};
use shared_proto::clock::Millis;
use shared_proto::config::Settings;
use shared_proto::failure::Profile;
use shared_proto::mirror::commit::Expected;
use shared_proto::mirror::record::Revision;

use super::{
    ACKNOWLEDGED_MS, Holds, MAX_ACKNOWLEDGED, MAX_PENDING, MAX_UNSURE, News, Replica, Source,
};
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

fn rev(number: u64) -> Revision {
    Revision::new(number)
}

/// The state after these failures.
fn after(failures: &[(&str, u64)]) -> ProviderBreaker {
    let start = ProviderBreaker::default();
    failures.iter().fold(start, |state, (connection, ms)| {
        state
            .apply(&failed(connection, *ms), at(*ms), &rules())
            .state
    })
}

fn log(holds: Holds<ProviderBreaker>) -> News<ProviderBreaker> {
    News {
        holds,
        source: Source::Log,
    }
}

fn snapshot(holds: Holds<ProviderBreaker>, rewound: bool) -> News<ProviderBreaker> {
    let fresh = false;
    News {
        holds,
        source: Source::Snapshot { rewound, fresh },
    }
}

/// A replica whose event `a` is stored as revision 5.
fn stored() -> Replica<ProviderBreaker> {
    let mut replica = replica();
    replica.apply(&failed("a", 0), at(0), &rules());
    replica.begin_commit().unwrap();
    replica.committed(rev(5), at(1));
    replica
}

fn count(replica: &Replica<ProviderBreaker>) -> u32 {
    replica.state().failure_count
}

#[test]
fn one_commit_at_a_time_and_the_next_carries_what_came_meanwhile() {
    let mut replica = replica();
    assert!(replica.begin_commit().is_none());
    let (first, _) = replica.apply(&failed("a", 0), at(0), &rules());
    let (on, state) = replica.begin_commit().unwrap();
    assert_eq!((on, state.failure_count), (Expected::Absent, 1));
    let (second, _) = replica.apply(&failed("b", 1), at(1), &rules());
    assert!(replica.begin_commit().is_none(), "one is under way");
    assert_eq!(Some(replica.committed(rev(7), at(2))), first);
    let (on, state) = replica.begin_commit().unwrap();
    assert_eq!(on, Expected::Revision(rev(7)));
    assert_eq!(state.failure_count, 2);
    assert_eq!(Some(replica.committed(rev(8), at(3))), second);
    assert!(replica.begin_commit().is_none(), "nothing is left");
}

#[test]
fn after_a_conflict_an_event_that_the_other_node_saw_too_counts_once() {
    let mut replica = replica();
    replica.apply(&failed("a", 0), at(0), &rules());
    replica.apply(&failed("b", 1), at(1), &rules());
    replica.begin_commit().unwrap();
    // Another node counted the failure of `a` and committed first.
    let theirs = Holds::State(after(&[("a", 0)]), rev(3));
    let rebased = replica.conflict(theirs, at(2), &rules()).unwrap();
    let pending: Vec<(u64, bool)> = rebased
        .again
        .iter()
        .map(|e| (e.ticket, e.pending))
        .collect();
    assert_eq!(pending, [(1, false), (2, true)]);
    let (on, state) = replica.begin_commit().unwrap();
    assert_eq!(on, Expected::Revision(rev(3)));
    assert_eq!(state.failure_count, 2);
}

#[test]
fn a_failed_commit_is_due_again_with_everything_in_it() {
    let mut replica = replica();
    replica.apply(&failed("a", 0), at(0), &rules());
    replica.begin_commit().unwrap();
    replica.failed(true);
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
            let carried = replica.in_flight.as_ref().map_or(0, |tried| tried.events);
            assert!(carried <= replica.pending.len());
        }
        assert_eq!(count(&replica), 200, "the state has them all");
    }
}

#[test]
fn the_log_brings_what_is_newer_and_repeats_nothing() {
    let mut replica = stored();
    let own = after(&[("a", 0)]);
    for revision in [4, 5] {
        let news = log(Holds::State(own.clone(), rev(revision)));
        assert!(replica.hear(news, at(2), &rules()).is_none());
    }
    let both = after(&[("a", 0), ("b", 1)]);
    let news = log(Holds::State(both, rev(6)));
    assert!(replica.hear(news, at(2), &rules()).is_some());
    assert_eq!(count(&replica), 2);
    assert!(replica.begin_commit().is_none());
    replica.apply(&failed("c", 2), at(2), &rules());
    let (on, _) = replica.begin_commit().unwrap();
    assert_eq!(on, Expected::Revision(rev(6)));
}

#[test]
fn a_deletion_forgets_all_but_what_waits() {
    let mut replica = stored();
    replica.apply(&failed("b", 1), at(1), &rules());
    let old = log(Holds::Nothing(Some(rev(4))));
    assert!(replica.hear(old, at(2), &rules()).is_none());
    let gone = log(Holds::Nothing(Some(rev(6))));
    assert!(replica.hear(gone, at(2), &rules()).is_some());
    let (on, state) = replica.begin_commit().unwrap();
    assert_eq!((on, state.failure_count), (Expected::Absent, 1));
    // What was committed before the deletion is no news after it.
    replica.failed(false);
    let late = log(Holds::State(after(&[("z", 0)]), rev(5)));
    assert!(replica.hear(late, at(3), &rules()).is_none());
}

#[test]
fn news_during_a_commit_waits_for_its_end() {
    for accepted in [true, false] {
        let mut replica = stored();
        replica.apply(&failed("b", 1), at(1), &rules());
        replica.begin_commit().unwrap();
        // Its own commit comes back through the log before the answer does.
        let own = after(&[("a", 0), ("b", 1)]);
        let news = log(Holds::State(own, rev(6)));
        assert!(replica.hear(news, at(2), &rules()).is_none());
        if accepted {
            replica.committed(rev(6), at(2));
        } else {
            replica.failed(true);
        }
        let news = replica.deferred().unwrap();
        let rebased = replica.hear(news, at(2), &rules());
        assert_eq!(rebased.is_none(), accepted);
        assert_eq!(count(&replica), 2, "counted once");
        assert!(replica.begin_commit().is_none(), "it is stored");
    }
}

#[test]
fn a_commit_without_an_answer_that_took_effect_is_known_again() {
    // One off the count is an event that would count each time.
    let eased = BreakerEvent::Succeeded {
        started_at: at(9),
        probe_generation: None,
    };
    let mut replica = stored();
    replica.apply(&failed("b", 1), at(1), &rules());
    replica.begin_commit().unwrap();
    replica.committed(rev(6), at(1));
    let (ticket, _) = replica.apply(&eased, at(9), &rules());
    replica.begin_commit().unwrap();
    let taken = replica.state().clone();
    replica.failed(true);
    replica.apply(&failed("c", 10), at(10), &rules());
    for _ in 0..MAX_UNSURE + 2 {
        replica.begin_commit().unwrap();
        replica.failed(true);
    }
    replica.begin_commit().unwrap();
    let newest = Holds::State(taken, rev(7));
    let rebased = replica.conflict(newest, at(11), &rules()).unwrap();
    assert_eq!(Some(rebased.stored_up_to), ticket);
    assert_eq!(count(&replica), 2, "one off, once; one more");
    assert!(replica.unsure.is_empty());
}

#[test]
fn a_store_that_went_back_is_told_again_what_is_known() {
    let older = || Holds::State(ProviderBreaker::default(), rev(2));
    let cases = [
        (snapshot(Holds::Nothing(None), true), Expected::Absent),
        (snapshot(older(), true), Expected::Revision(rev(2))),
        // Nobody said so, but a record does not grow younger by itself.
        (snapshot(older(), false), Expected::Revision(rev(2))),
    ];
    for (news, expected) in cases {
        let mut replica = stored();
        assert!(replica.hear(news, at(2), &rules()).is_none());
        let (on, state) = replica.begin_commit().unwrap();
        assert_eq!((on, state.failure_count), (expected, 1));
        replica.committed(rev(9), at(3));
        assert!(replica.begin_commit().is_none());
    }
}

#[test]
fn an_owner_that_meets_a_store_that_went_back_loses_nothing() {
    for newest in [None, Some(2)] {
        let mut replica = stored();
        replica.apply(&failed("b", 1), at(1), &rules());
        replica.begin_commit().unwrap();
        let holds = newest.map_or(Holds::Nothing(None), |revision| {
            Holds::State(ProviderBreaker::default(), rev(revision))
        });
        assert!(replica.conflict(holds, at(2), &rules()).is_none());
        let (on, state) = replica.begin_commit().unwrap();
        let expected = newest.map_or(Expected::Absent, |n| Expected::Revision(rev(n)));
        assert_eq!((on, state.failure_count), (expected, 2));
        // Another node did the same, and knew less.
        let theirs = Holds::State(after(&[("z", 1)]), rev(9));
        assert!(replica.conflict(theirs, at(3), &rules()).is_some());
        assert_eq!(count(&replica), 3, "z, a again, b");
    }
}

#[test]
fn where_another_node_came_first_events_of_the_last_while_are_applied_again() {
    for late in [false, true] {
        let mut replica = stored();
        let now = if late { at(2 + ACKNOWLEDGED_MS) } else { at(2) };
        // The store lost `a`, and another node has written since.
        let theirs = after(&[("z", 1)]);
        let news = snapshot(Holds::State(theirs, rev(8)), true);
        assert!(replica.hear(news, now, &rules()).is_some());
        assert_eq!(count(&replica), if late { 1 } else { 2 });
        assert_eq!(replica.begin_commit().is_some(), !late);
    }
}

#[test]
fn what_the_newer_record_has_already_is_not_counted_twice() {
    let mut replica = stored();
    let theirs = after(&[("a", 0), ("z", 1)]);
    let news = snapshot(Holds::State(theirs, rev(8)), true);
    replica.hear(news, at(2), &rules());
    assert_eq!(count(&replica), 2);
    assert!(replica.begin_commit().is_none());
}

#[test]
fn a_snapshot_is_no_news_to_an_owner_that_has_heard_since() {
    let mut replica = stored();
    for holds in [
        Holds::Nothing(None),
        Holds::State(ProviderBreaker::default(), rev(4)),
    ] {
        let source = Source::Snapshot {
            rewound: true,
            fresh: true,
        };
        assert!(
            replica
                .hear(News { holds, source }, at(2), &rules())
                .is_none()
        );
    }
    assert_eq!(count(&replica), 1);
    assert!(replica.begin_commit().is_none());
}

#[test]
fn a_record_that_is_gone_after_a_gap_takes_the_state_with_it() {
    let mut replica = stored();
    let gone = snapshot(Holds::Nothing(None), false);
    assert!(replica.hear(gone, at(2), &rules()).is_some());
    assert_eq!(count(&replica), 0);
    assert!(replica.begin_commit().is_none());
}

#[test]
fn what_cannot_be_read_leaves_the_state_as_it_is_known() {
    let mut replica = stored();
    let news = log(Holds::Unreadable(Expected::Revision(rev(6))));
    assert!(replica.hear(news, at(2), &rules()).is_none());
    assert_eq!(count(&replica), 1);
    replica.apply(&failed("b", 1), at(1), &rules());
    let (on, _) = replica.begin_commit().unwrap();
    assert_eq!(on, Expected::Revision(rev(6)));
    replica.failed(false);
    let news = log(Holds::Unreadable(Expected::Corrupt));
    replica.hear(news, at(2), &rules());
    assert_eq!(replica.begin_commit().unwrap().0, Expected::Corrupt);
}

#[test]
fn acknowledged_events_are_kept_within_their_bounds() {
    let mut replica = replica();
    for n in 0..200_u64 {
        replica.apply(&failed(&format!("c{n}"), n), at(n), &rules());
        replica.begin_commit().unwrap();
        replica.committed(rev(n + 1), at(n));
        assert!(replica.acknowledged.len() <= MAX_ACKNOWLEDGED);
    }
    let news = snapshot(Holds::State(ProviderBreaker::default(), rev(500)), true);
    replica.hear(news, at(200), &rules());
    assert!(replica.pending.len() <= MAX_PENDING);
    assert_eq!(count(&replica), u32::try_from(MAX_ACKNOWLEDGED).unwrap());
}
