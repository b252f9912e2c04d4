//! Keys: one spelling each, whatever the ids are made of.

use proptest::prelude::*;

use super::{Key, Keyspace, Spelled};

/// A key of every kind that has an id.
fn keys(id: &str) -> [Key; 10] {
    [
        Key::Health(id.into()),
        Key::Lockout(id.into()),
        Key::Breaker(id.into()),
        Key::Gate(id.into()),
        Key::Lease(id.into()),
        Key::Bound(id.into()),
        Key::Pin(id.into()),
        Key::Token(id.into()),
        Key::Refresh(id.into()),
        Key::other("later", id).unwrap(),
    ]
}

#[test]
fn spells_plain_ids_readably() {
    let space = Keyspace::new("omniroute");
    let kinds = [
        "health", "lockout", "breaker", "gate", "lease", "bound", "pin", "token", "refresh",
        "later",
    ];
    for (key, kind) in keys("acme-1").into_iter().zip(kinds) {
        assert_eq!(key.kind(), kind);
        assert_eq!(space.spell(&key), format!("{{omniroute}}:{kind}:acme-1"));
        let free = Key::other(kind, "acme-1").is_some();
        assert_eq!(free, kind == "later", "{kind} has a variant of its own");
        assert_eq!(key.is_logged(), kind != "pin", "only pins are quiet");
    }
    assert_eq!(space.spell(&Key::Leader), "{omniroute}:leader:coordinator");
    assert!(Key::Leader.is_logged());
}

#[test]
fn no_id_imitates_a_separator_or_another_key() {
    let space = Keyspace::new("omni}:x{");
    assert_eq!(
        space.spell(&Key::Health("a:b}/%é".into())),
        "{omni%7D%3Ax%7B}:health:a%3Ab%7D%2F%25%C3%A9"
    );
    assert_eq!(
        space.spell(&Key::Health("".into())),
        "{omni%7D%3Ax%7B}:health:"
    );
    assert_eq!(
        Keyspace::new("").spell(&Key::Health("a".into())),
        "{%}:health:a"
    );
}

#[test]
fn later_kinds_are_carried_as_they_are() {
    let space = Keyspace::new("p");
    for text in ["{p}:later:acme-1:gpt%2F4", "{p}:slot:%zz", "{p}:v2-pin:"] {
        let Spelled::Key(key) = space.parse(text) else {
            panic!("{text} is a key");
        };
        assert_eq!(space.spell(&key), text);
    }
    assert_eq!(Key::other("", "a"), None);
    assert_eq!(Key::other("a:b", "a"), None);
}

#[test]
fn tells_foreign_keys_from_malformed_ones() {
    let space = Keyspace::new("p");
    for text in ["", "p:health:a", "{q}:health:a", "{p}", "{pp}:health:a"] {
        assert_eq!(space.parse(text), Spelled::Elsewhere, "{text}");
    }
    for text in [
        "{p}:",
        "{p}:health",
        "{p}:health:a/b",
        "{p}:health:%2f",
        "{p}:health:%41",
        "{p}:health:%",
        "{p}:health:%F",
        "{p}:health:%FF",
        "{p}:health:%é",
        "{p}:health:%+1",
        "{p}:Health:a",
        "{p}:leader:another",
        "{p}::a",
    ] {
        assert_eq!(space.parse(text), Spelled::Malformed, "{text}");
    }
}

proptest! {
    #[test]
    fn every_id_and_prefix_comes_back(prefix in any::<String>(), id in any::<String>()) {
        let space = Keyspace::new(&prefix);
        for key in keys(&id) {
            prop_assert_eq!(space.parse(&space.spell(&key)), Spelled::Key(key));
        }
    }

    #[test]
    fn any_text_parses_to_a_key_that_spells_it(rest in "[a-z:%0-9A-F/{}é]{0,24}") {
        let space = Keyspace::new("p");
        let text = format!("{{p}}:{rest}");
        if let Spelled::Key(key) = space.parse(&text) {
            prop_assert_eq!(space.spell(&key), text);
        }
    }

    #[test]
    fn different_ids_have_different_keys(a in any::<String>(), b in any::<String>()) {
        prop_assume!(a != b);
        let space = Keyspace::new("p");
        prop_assert_ne!(space.spell(&Key::Health(a.as_str().into())), space.spell(&Key::Health(b.as_str().into())));
        prop_assert_ne!(Keyspace::new(&a), Keyspace::new(&b));
    }
}
