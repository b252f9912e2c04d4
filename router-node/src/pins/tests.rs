//! Pins as two nodes of one store make, find, move and tell of them.

use std::sync::Arc;

use shared_proto::clock::Millis;
use shared_proto::mirror::Mirror;
use shared_proto::mirror::commit::Expected;
use shared_proto::mirror::key::Key;
use shared_proto::pin::{Pin, Stored};

use super::{Pins, Proposed};
use crate::absent::{Absent, eventually};
use crate::observe::PinMetrics;
use crate::routing::ConnectionCell;

const TTL_MS: u64 = 3_000;

fn pins(store: &Arc<Absent>) -> Pins {
    let mirror: Arc<dyn Mirror> = Arc::<Absent>::clone(store);
    Pins::start(&mirror, true, PinMetrics::default())
}

fn name() -> Arc<str> {
    "5e55".into()
}

fn pin(connection: &str, store: &Absent) -> Pin {
    Pin::new(connection.into(), store.now())
}

async fn propose(pins: &Pins, pin: &Pin, expected: Expected) -> Proposed {
    let provider = "acme".into();
    pins.propose(&name(), pin, (expected, TTL_MS), &provider)
        .await
}

/// Pins the session to `a`, and remembers it on this node.
async fn pinned(pins: &Pins, store: &Absent, cell: &ConnectionCell) {
    let pin = pin("a", store);
    match propose(pins, &pin, Expected::Absent).await {
        Proposed::Made(revision) => pins.learn(&name(), (&pin, revision), TTL_MS, cell),
        Proposed::Other(..) | Proposed::Away => panic!("there was none"),
    };
}

async fn stored(store: &Absent) -> Option<(String, Millis)> {
    let record = store.load(&Key::Pin(name())).await.unwrap();
    match Stored::of(record.as_ref(), store.now()) {
        Stored::Live(pin, _) => Some((pin.connection.to_string(), pin.used_at)),
        Stored::Over(_) | Stored::Newer => None,
    }
}

#[actix::test]
async fn the_first_one_counts_until_it_is_over() {
    let store = Absent::new();
    let (one, two) = (pins(&store), pins(&store));
    pinned(&one, &store, &ConnectionCell::default()).await;
    let wish = pin("b", &store);
    match propose(&two, &wish, Expected::Absent).await {
        Proposed::Other(pin, revision) => {
            assert_eq!(pin.connection.as_str(), "a");
            let moved = propose(&two, &wish, Expected::Revision(revision)).await;
            assert!(matches!(moved, Proposed::Made(_)));
        }
        Proposed::Made(_) | Proposed::Away => panic!("a pin was replaced"),
    }
    store.clock.advance(TTL_MS);
    let late = pin("c", &store);
    let made = propose(&one, &late, Expected::Absent).await;
    assert!(matches!(made, Proposed::Made(_)));
    assert_eq!(stored(&store).await.unwrap().0, "c");
    let uses = two.uses(&"acme".into()).await;
    assert_eq!(uses.len(), 3, "{uses:?}");
    assert_eq!(uses.get("c"), Some(&store.now()));
}

#[actix::test]
async fn uses_are_told_in_time_and_not_each() {
    let store = Absent::new();
    let pins = pins(&store);
    pinned(&pins, &store, &ConnectionCell::default()).await;
    let made_at = store.now();
    store.clock.advance(TTL_MS / 3 + 1);
    let used_at = store.now();
    let known = pins.known(&name(), used_at).unwrap();
    for _ in 0..100 {
        pins.used(&name(), &known, used_at);
    }
    assert_eq!(stored(&store).await.unwrap().1, made_at);
    eventually(async || stored(&store).await.unwrap().1 == used_at).await;
    // Lives from its last use on, also where nothing was told of that yet.
    store.clock.advance(TTL_MS - 1);
    assert!(pins.known(&name(), store.now()).is_some());
    store.clock.advance(1);
    assert!(pins.known(&name(), store.now()).is_none());
    assert!(stored(&store).await.is_none());
}

#[actix::test]
async fn what_was_moved_elsewhere_is_learned_and_asked_about() {
    let store = Absent::new();
    let (one, two) = (pins(&store), pins(&store));
    let cell = ConnectionCell::default();
    pinned(&one, &store, &cell).await;
    let known = one.known(&name(), store.now()).unwrap();
    assert!(known.is_current(&cell));
    let wish = pin("b", &store);
    let expected = known.expected();
    let moved = propose(&two, &wish, expected).await;
    assert!(matches!(moved, Proposed::Made(_)));
    store.clock.advance(TTL_MS / 3 + 1);
    one.used(&name(), &known, store.now());
    eventually(async || {
        let known = one.known(&name(), store.now()).unwrap();
        known.connection.as_str() == "b" && !known.is_current(&cell)
    })
    .await;
    assert_eq!(stored(&store).await.unwrap().0, "b");
}

#[actix::test]
async fn a_pin_of_this_node_alone_is_told_when_the_store_is_back() {
    let store = Absent::new();
    let pins = pins(&store);
    store.set_away(true);
    let own = pin("a", &store);
    let made = propose(&pins, &own, Expected::Absent).await;
    assert!(matches!(made, Proposed::Away));
    assert!(!pins.store_answers());
    let cell = ConnectionCell::default();
    let known = pins.learn_own(&name(), (&own, Expected::Absent), TTL_MS, &cell);
    pins.used(&name(), &known, store.now());
    store.set_away(false);
    eventually(async || stored(&store).await.is_some()).await;
    assert_eq!(stored(&store).await.unwrap().0, "a");
}
