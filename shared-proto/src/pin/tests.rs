//! Keys, records and the choice of a first connection.

use proptest::prelude::*;

use super::{Pin, Stored, Use, name};
use crate::clock::Millis;
use crate::id::ApiKeyId;
use crate::mirror::commit::{Change, Commit, Expected};
use crate::mirror::key::Key;
use crate::mirror::record::{Record, Revision};

fn at(ms: u64) -> Millis {
    Millis::from_epoch_ms(ms)
}

fn record(commit: &Commit, version: u16) -> Record {
    let Change::Put { body, expires_at } = &commit.change else {
        panic!("a pin is put");
    };
    Record {
        key: commit.key.clone(),
        version,
        revision: Revision::new(7),
        written_at: at(0),
        expires_at: *expires_at,
        body: body.clone(),
    }
}

#[test]
fn a_key_is_a_hash_and_nobody_shares_it() {
    let key = ApiKeyId::from("team");
    let all = [
        name(&"codex".into(), None, "s"),
        name(&"codex".into(), Some(&"".into()), "s"),
        name(&"codex".into(), Some(&key), "s"),
        name(&"codex".into(), Some(&"other".into()), "s"),
        name(&"openai".into(), Some(&key), "s"),
        name(&"codex".into(), Some(&key), "t"),
        // The same letters, otherwise divided.
        name(&"code".into(), Some(&"xteam".into()), "s"),
        name(&"codex".into(), Some(&"tea".into()), "ms"),
    ];
    for (n, one) in all.iter().enumerate() {
        assert!(one.len() == 64 && one.bytes().all(|b| b.is_ascii_hexdigit()));
        assert!(!all.iter().take(n).any(|other| other == one), "{n}");
    }
    assert_eq!(all[2], name(&"codex".into(), Some(&key), "s"));
    assert!(!Key::Pin(all[2].clone()).is_logged());
}

#[test]
fn a_record_lives_until_a_time_to_live_after_its_last_use() {
    let pin = Pin {
        used_at: at(500),
        ..Pin::new("a".into(), at(100))
    };
    let hash = name(&"acme".into(), None, "s");
    let commit = pin.commit(&hash, Expected::Absent, 1000).unwrap();
    let stored = record(&commit, 1);
    let live = Stored::Live(pin, Revision::new(7));
    assert_eq!(Stored::of(Some(&stored), at(1499)), live);
    let over = Stored::Over(Expected::Revision(Revision::new(7)));
    assert_eq!(Stored::of(Some(&stored), at(1500)), over);
    assert_eq!(Stored::of(None, at(0)), Stored::Over(Expected::Absent));
    assert_eq!(
        Stored::of(Some(&record(&commit, 2)), at(9000)),
        Stored::Newer
    );
    let mut senseless = stored;
    senseless.body = bytes::Bytes::from_static(b"\x80");
    assert_eq!(Stored::of(Some(&senseless), at(0)), over);
}

fn first(uses: &[(&'static str, Option<u64>, u64, u32)]) -> &'static str {
    let rank = |one: &&(&str, Option<u64>, u64, u32)| {
        Use {
            used_at: one.1.map(at),
            order: one.2,
            priority: one.3,
        }
        .rank()
    };
    uses.iter().min_by_key(rank).unwrap().0
}

#[test]
fn never_used_by_priority_then_the_oldest_use() {
    // SA-06
    let uses = [
        ("a", Some(10_000), 4, 0),
        ("b", None, 0, 2),
        ("c", None, 0, 1),
    ];
    assert_eq!(first(&uses), "c");
    assert_eq!(first(&[("a", Some(2), 1, 0), ("b", Some(1), 9, 5)]), "b");
    assert_eq!(first(&[("a", Some(2), 2, 0), ("b", Some(2), 1, 5)]), "b");
    assert_eq!(first(&[("a", Some(2), 0, 3), ("b", Some(2), 0, 1)]), "b");
}

proptest! {
    #[test]
    fn whoever_was_just_used_comes_last(
        uses in prop::collection::vec((prop::option::of(0_u64..1000), 0_u64..9, 0_u32..9), 2..20),
        used in any::<prop::sample::Index>(),
    ) {
        let mut uses: Vec<Use> = uses
            .into_iter()
            .map(|(used_at, order, priority)| Use { used_at: used_at.map(at), order, priority })
            .collect();
        let used = used.index(uses.len());
        uses[used] = Use { used_at: Some(at(1001)), order: 10, ..uses[used] };
        let last = (0..uses.len()).max_by_key(|n| uses[*n].rank()).unwrap();
        prop_assert_eq!(last, used);
    }
}
