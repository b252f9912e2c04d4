//! What YAML itself can get wrong, and what an almost empty file means.

use std::fmt::Write as _;

use super::super::yaml::MAX_BYTES;
use super::super::{Overrides, Source, load};
use super::{Surroundings, bad, good};

fn bad_bytes(bytes: &[u8]) -> Vec<String> {
    let source = Source {
        name: "omniroute.yaml",
        bytes,
    };
    let problems = load(
        Some(&source),
        &Surroundings::default(),
        &Overrides::default(),
    );
    problems
        .unwrap_err()
        .iter()
        .map(ToString::to_string)
        .collect()
}

/// Texts and all that is told of them.
const FAULTY: &[(&str, &[&str])] = &[
    (
        "server: {}\nstore: {}\nserver: {}\nstore: {}\n",
        &[
            "omniroute.yaml:3:1: `server` is given twice; the first is on line 1",
            "omniroute.yaml:4:1: `store` is given twice; the first is on line 2",
        ],
    ),
    (
        "store:\n  url: embedded:memory\n  url: embedded:x\n  prefux: y\n",
        &[
            "omniroute.yaml:3:3: `url` is given twice; the first is on line 2",
            "omniroute.yaml:4:3: store.prefux: unknown key (did you mean `prefix`?)",
        ],
    ),
    (
        "server: {}\n---\nstore: {}\n",
        &["omniroute.yaml:2:1: a second YAML document; the file may hold one"],
    ),
    (
        "server:\n\tlisten: 127.0.0.1:1\n",
        &["omniroute.yaml:2:1: a tab cannot indent YAML; use spaces"],
    ),
    (
        "- server\n",
        &["omniroute.yaml:1:1: expected a mapping, found a list"],
    ),
    (
        "just text\n",
        &["omniroute.yaml:1:1: expected a mapping, found text"],
    ),
    (
        "? [a, b]\n: c\n",
        &["omniroute.yaml:1:3: a key has to be plain text"],
    ),
    (
        "server: !include other.yaml\n",
        &["omniroute.yaml:1:9: a tag does not fit here; a text that begins with `!` needs quotes"],
    ),
    (
        "server:\n  workers: !!int many\n",
        &["omniroute.yaml:2:12: a tag does not fit here; a text that begins with `!` needs quotes"],
    ),
    (
        "base: &base {id: a}\nconnections: [{<<: *base, provider: simulated}]\n",
        &[
            "omniroute.yaml:1:1: base: unknown key",
            "omniroute.yaml:2:15: connections[0].id: is missing",
            "omniroute.yaml:2:16: connections[0].\"<<\": unknown key",
        ],
    ),
    (
        "connections: *nowhere\n",
        &["omniroute.yaml:1:14: not valid YAML: while parsing node, found unknown anchor"],
    ),
    (
        "server: {listen: 127.0.0.1:1\n",
        &[
            "omniroute.yaml:2:1: not valid YAML: while parsing a flow mapping, did not find expected ',' or '}'",
        ],
    ),
    (
        "server:\n  listen: a\n store: b\n",
        &[
            "omniroute.yaml:3:2: not valid YAML: while parsing a block mapping, did not find expected key",
        ],
    ),
];

#[test]
fn a_fault_of_the_text_is_told_at_its_place() {
    for (text, expected) in FAULTY {
        assert_eq!(bad(text), *expected, "{text}");
    }
}

#[test]
fn what_is_no_text_or_too_much_is_refused() {
    assert_eq!(
        bad_bytes(b"server: {}\nstore: {}\nx: \xff\n"),
        ["omniroute.yaml:3:1: the file is not UTF-8 text"]
    );
    assert_eq!(
        bad_bytes(&"# filling\n".repeat(MAX_BYTES).into_bytes()),
        ["omniroute.yaml:1:1: the file is larger than 4194304 bytes"]
    );
    let nested = format!("server: {}{}", "[".repeat(70), "]".repeat(70));
    assert_eq!(
        bad(&nested),
        ["omniroute.yaml:1:72: nested deeper than 64 levels"]
    );
    let many = format!("server: [{}]", "1,".repeat(600_000));
    assert!(bad(&many)[0].contains("more than 500000 values"));
}

#[test]
fn anchors_repeat_but_do_not_explode() {
    let loaded = good(
        "providers:\n  - &base {id: a, protocol: openai, baseUrl: 'https://a.example/v1', timeouts: &t {connectMs: 7}}\n  \
         - {id: b, protocol: openai, baseUrl: 'https://b.example/v1', timeouts: *t}\n",
    );
    let b = &loaded.config.providers["b"];
    assert_eq!(b.timeouts.connect_ms, 7);

    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..9 {
        let below = format!("*a{}, ", level - 1).repeat(10);
        writeln!(bomb, "a{level}: &a{level} [{below}]").unwrap();
    }
    let told = bad(&bomb);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("more than 500000 values, anchors' repetitions included"));

    let mut tower = "a0: &a0 [x]\n".to_owned();
    for level in 1..200 {
        writeln!(tower, "a{level}: &a{level} [[[*a{}]]]", level - 1).unwrap();
    }
    assert!(bad(&tower)[0].contains("nested deeper than 64 levels"));
}

#[test]
fn a_file_that_says_nothing_is_no_configuration() {
    for text in ["", "\n\n", "# only a comment\n", "---\n", "~\n", "\u{feff}"] {
        let env = Surroundings::with(&[("OPENAI_API_KEY", "sk-1")]);
        let loaded = super::load_text(text, &env).unwrap();
        assert_eq!(loaded.found.len(), 1, "{text:?}");
    }
}

#[test]
fn line_ends_and_byte_order_marks_do_not_matter() {
    for text in [
        "\u{feff}store:\n  url: embedded:memory\n",
        "store:\r\n  url: embedded:memory\r\n",
        "{\"store\": {\"url\": \"embedded:memory\"}}",
        "--- !!map\nstore: {url: !!str embedded:memory}\n...\n",
    ] {
        assert_eq!(
            good(text).config.store.url,
            super::super::StoreUrl::Memory,
            "{text:?}"
        );
    }
}
