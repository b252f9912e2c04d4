//! Ways out: what is asked when, and what is told of it.

use std::net::IpAddr;
use std::sync::Arc;

use shared_proto::clock::Millis;
use shared_proto::config::{Config, Env, Overrides, Source, load};
use shared_proto::egress::{Observation, Observations};

use super::prober::Ways;
use crate::routing::{Cells, build};

const T0: Millis = Millis::from_epoch_ms(1_790_856_000_000);
const DAY_MS: u64 = 86_400_000;

struct Nothing;

impl Env for Nothing {
    fn var(&self, _: &str) -> Option<String> {
        None
    }

    fn read_file(&self, _: &std::path::Path) -> Result<String, String> {
        Err("no files".into())
    }
}

fn config(more: &str) -> Config {
    let text = format!(
        "connections:
  - {{id: direct, provider: opencode-go, apiKey: key-1}}
  - {{id: also-direct, provider: opencode}}
  - {{id: proxied, provider: opencode-go, apiKey: key-2, proxyUrl: 'http://u:pw@proxy'}}
  - {{id: never-cools, provider: opencode-go, apiKey: key-3, disableCooling: true}}
  - {{id: elsewhere, provider: openai, apiKey: key-4}}
{more}"
    );
    let source = Source {
        name: "test",
        bytes: text.as_bytes(),
    };
    load(Some(&source), &Nothing, &Overrides::default())
        .unwrap()
        .config
}

fn ways(more: &str) -> Ways {
    let mut ways = Ways::default();
    let mut cells = Cells::default();
    ways.follow(&build(Arc::new(config(more)), &mut cells, T0));
    ways
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn seen(observations: &Observations) -> Vec<(&str, String, bool)> {
    let all = observations.seen.iter();
    all.map(|(id, seen)| (id.as_str(), seen.address.to_string(), seen.proxied))
        .collect()
}

#[test]
fn each_way_is_asked_about_once_and_for_families_only() {
    let ways = ways("");
    let due = ways.due(T0, 300_000);
    assert_eq!(due, [None, Some(Arc::from("http://u:pw@proxy"))]);
    let off = self::ways("settings: {egress: {lockProviders: []}}");
    assert!(off.due(T0, 300_000).is_empty());
    let other = self::ways("settings: {egress: {lockProviders: [openai]}}");
    assert_eq!(other.due(T0, 300_000), [None]);
}

/// EGR-16.
#[test]
fn an_answer_counts_for_the_time_of_the_cache_and_so_does_none() {
    for answer in [Some(address("203.0.113.7")), None] {
        let mut ways = ways("");
        for way in ways.due(T0, 300_000) {
            ways.answered(way, answer, T0, 0);
        }
        assert!(ways.due(T0.plus(299_999), 300_000).is_empty());
        assert_eq!(ways.due(T0.plus(300_000), 300_000).len(), 2);
    }
}

#[test]
fn a_question_without_an_answer_leaves_what_was_known() {
    let mut ways = ways("");
    ways.answered(None, Some(address("203.0.113.7")), T0, 0);
    ways.answered(None, None, T0.plus(5), 0);
    let told = ways.observations(&Observations::default(), DAY_MS, T0.plus(5));
    assert_eq!(
        seen(&told),
        [
            ("also-direct", "203.0.113.7".to_owned(), false),
            ("direct", "203.0.113.7".to_owned(), false),
        ]
    );
    assert_eq!(told.seen["direct"].at, T0);
    let later = ways.observations(&told, DAY_MS, T0.plus(DAY_MS));
    assert!(later.seen.is_empty(), "it is too old");
}

#[test]
fn what_was_told_before_the_start_counts_until_it_is_asked_again() {
    let observation = |proxied| Observation {
        family: "opencode".into(),
        address: address("203.0.113.7"),
        at: T0,
        proxied,
    };
    let before = Observations {
        keep_ms: DAY_MS,
        seen: [
            ("direct".into(), observation(false)),
            // It has a proxy now.
            ("proxied".into(), observation(false)),
            ("gone".into(), observation(false)),
        ]
        .into(),
    };
    let mut ways = ways("");
    let told = ways.observations(&before, DAY_MS, T0.plus(1));
    assert_eq!(seen(&told), [("direct", "203.0.113.7".to_owned(), false)]);
    ways.answered(None, Some(address("203.0.113.8")), T0.plus(2), 0);
    let told = ways.observations(&told, DAY_MS, T0.plus(2));
    assert_eq!(told.seen["direct"].address, address("203.0.113.8"));
}

#[test]
fn a_way_that_nobody_uses_any_more_is_forgotten() {
    let mut ways = ways("");
    for way in ways.due(T0, 300_000) {
        ways.answered(way, Some(address("203.0.113.7")), T0, 0);
    }
    let mut cells = Cells::default();
    let off = config("settings: {egress: {lockProviders: []}}");
    ways.follow(&build(Arc::new(off), &mut cells, T0));
    let told = ways.observations(&Observations::default(), DAY_MS, T0);
    assert!(told.seen.is_empty());
    ways.follow(&build(Arc::new(config("")), &mut cells, T0));
    assert_eq!(ways.due(T0, 300_000).len(), 2);
}
