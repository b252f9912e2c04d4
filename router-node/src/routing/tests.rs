//! What is ready at which moment, by the clock alone: no owner's timer runs here.

use std::sync::Arc;

use shared_proto::clock::Millis;
use shared_proto::config::{Env, Overrides, Source, load};
use shared_proto::health::ConnectionHealth;

use super::{Cells, PublishHealth, Routing, Slot, build};
use crate::actor::owner::Publish as _;

struct Nowhere;

impl Env for Nowhere {
    fn var(&self, _: &str) -> Option<String> {
        None
    }

    fn read_file(&self, _: &std::path::Path) -> Result<String, String> {
        Err("there are no files".into())
    }
}

/// Connections a, b and c by priority; c names its model.
fn routing() -> Routing {
    let text = "
providers: [{id: acme, protocol: openai, baseUrl: 'http://127.0.0.1:1/v1'}]
connections:
  - {id: a, provider: acme, apiKey: key-a, priority: 1}
  - {id: b, provider: acme, apiKey: key-b, priority: 2}
  - {id: c, provider: acme, apiKey: key-c, priority: 3, models: [m]}
";
    let source = Source {
        name: "test.yaml",
        bytes: text.as_bytes(),
    };
    let loaded = load(Some(&source), &Nowhere, &Overrides::default()).unwrap();
    build(Arc::new(loaded.config), &mut Cells::default(), at(0))
}

const fn at(ms: u64) -> Millis {
    Millis::from_epoch_ms(ms)
}

fn slot<'r>(routing: &'r Routing, id: &str) -> &'r Arc<Slot> {
    let found = routing.slots.iter().find(|(key, _)| key.as_str() == id);
    found.unwrap().1
}

fn rest(routing: &Routing, id: &str, until: u64, now: u64) {
    let health = ConnectionHealth {
        cooldown_until: Some(at(until)),
        ..ConnectionHealth::default()
    };
    PublishHealth(Arc::clone(&slot(routing, id).cell)).publish(&health, at(now));
}

fn ready(routing: &Routing, now: u64) -> Vec<&str> {
    let acme = routing.providers.values().find(|p| p.all.len() == 3);
    let ready = acme.unwrap().ready("m", at(now));
    ready.map(|slot| slot.connection.id.as_str()).collect()
}

#[test]
fn a_cooldown_is_over_at_its_end_not_when_a_timer_says_so() {
    let routing = routing();
    assert_eq!(ready(&routing, 0), ["a", "b", "c"]);
    rest(&routing, "a", 1_000, 0);
    rest(&routing, "c", 500, 0);
    assert_eq!(ready(&routing, 0), ["b"]);
    assert_eq!(ready(&routing, 499), ["b"]);
    assert_eq!(ready(&routing, 500), ["b", "c"]);
    assert_eq!(ready(&routing, 999), ["b", "c"]);
    assert_eq!(ready(&routing, 1_000), ["a", "b", "c"]);
}

#[test]
fn several_ends_are_each_met_in_their_order() {
    let routing = routing();
    rest(&routing, "a", 3_000, 0);
    rest(&routing, "b", 1_000, 0);
    assert_eq!(ready(&routing, 1_000), ["b", "c"]);
    // A new rest that ends before the one that is still to come.
    rest(&routing, "b", 2_000, 1_000);
    assert_eq!(ready(&routing, 1_999), ["c"]);
    assert_eq!(ready(&routing, 2_000), ["b", "c"]);
    assert_eq!(ready(&routing, 3_000), ["a", "b", "c"]);
}

#[test]
fn a_prolonged_rest_is_not_cut_short_by_the_end_that_was_announced() {
    let routing = routing();
    rest(&routing, "a", 1_000, 0);
    rest(&routing, "a", 9_000, 10);
    assert_eq!(ready(&routing, 1_000), ["b", "c"]);
    assert_eq!(ready(&routing, 8_999), ["b", "c"]);
    assert_eq!(ready(&routing, 9_000), ["a", "b", "c"]);
}
