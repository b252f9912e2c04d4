//! Properties: nothing panics, the schema and the structs agree.

use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::super::problem::{Path, nearest};
use super::super::report::Report;
use super::super::{Overrides, Source, load, schema, shape, yaml};
use super::{Surroundings, load_text};

/// Bits of configuration files, in any order and at any depth.
fn soup() -> impl Strategy<Value = String> {
    let word = prop::sample::select(vec![
        "server",
        "store",
        "providers",
        "connections",
        "combos",
        "apiKeys",
        "settings",
        "id",
        "provider",
        "apiKey",
        "env",
        "file",
        "oauth",
        "accessToken",
        "listen",
        "url",
        "baseUrl",
        "protocol",
        "targets",
        "model",
        "name",
        "strategy",
        "resilience",
        "connectionCooldown",
        "apikey",
        "baseCooldownMs",
        "modelLockout",
        "errorCodes",
        "timeouts",
        "connectMs",
        "sha256",
        "key",
        "models",
        "proxyUrl",
        "priority",
        "openai",
        "openai/gpt-4o",
        "127.0.0.1:80",
        "embedded:memory",
        "simulated",
        "-5",
        "1e99",
        ".nan",
        "true",
        "~",
        "'9'",
        "https://a.b/v1",
    ]);
    let leaf = word.clone().prop_map(str::to_owned);
    leaf.prop_recursive(5, 60, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4)
                .prop_map(|items| format!("[{}]", items.join(", "))),
            prop::collection::vec((word.clone(), inner), 0..5).prop_map(|entries| {
                let entries: Vec<String> = entries
                    .into_iter()
                    .map(|(key, value)| format!("? {key} : {value}"))
                    .collect();
                format!("{{{}}}", entries.join(", "))
            }),
        ]
    })
}

fn never_disagrees(text: &str) {
    let told = match load_text(text, &Surroundings::default()) {
        Ok(loaded) => loaded.warnings,
        Err(problems) => {
            assert!(!problems.is_empty(), "refused without a word: {text}");
            problems
        }
    };
    for problem in told {
        let shown = problem.to_string();
        assert!(!shown.contains("its own schema"), "{shown}\n{text}");
        assert!(
            problem.line > 0 || problem.file != "omniroute.yaml",
            "{shown}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let source = Source { name: "omniroute.yaml", bytes: &bytes };
        let result = load(Some(&source), &Surroundings::default(), &Overrides::default());
        prop_assert!(result.is_ok() || !result.unwrap_err().is_empty());
    }

    #[test]
    fn arbitrary_text_never_panics(text in "[\\-\\?:,\\[\\]{}#&*!|>'\"%@ `\t\n~a-c0-9.]{0,80}") {
        never_disagrees(&text);
    }

    #[test]
    fn words_in_any_order_never_panic(text in soup()) {
        never_disagrees(&text);
    }

    #[test]
    fn an_example_with_a_hole_never_panics(from in 0_usize..7000, length in 0_usize..300) {
        let text: Vec<char> = include_str!("../../../../deploy/omniroute.example.yaml").chars().collect();
        let from = from.min(text.len());
        let rest = text.iter().skip(from.saturating_add(length));
        let holed: String = text.iter().take(from).chain(rest).collect();
        never_disagrees(&holed);
    }

    #[test]
    fn a_suggestion_is_a_candidate(word in "\\PC{0,20}", candidates in prop::collection::vec("\\PC{0,12}", 0..5)) {
        let found = nearest(&word, candidates.iter().map(String::as_str));
        prop_assert!(found.is_none_or(|found| found != word && candidates.contains(&found)));
    }
}

/// Calls `keyword` for each keyword of a schema and what is in it.
fn visit(schema: &Json, keyword: &mut impl FnMut(&str, &Json)) {
    let Some(map) = schema.as_object() else {
        return;
    };
    for (name, value) in map {
        keyword(name, value);
        match name.as_str() {
            "properties" | "$defs" => value
                .as_object()
                .unwrap()
                .values()
                .for_each(|each| visit(each, keyword)),
            "oneOf" | "anyOf" => value
                .as_array()
                .unwrap()
                .iter()
                .for_each(|each| visit(each, keyword)),
            "items" | "additionalProperties" => visit(value, keyword),
            _ => {}
        }
    }
}

/// Every keyword and type that the schema uses is one that the walk knows.
#[test]
fn the_walk_knows_every_keyword_of_the_schema() {
    let walked = BTreeSet::from([
        "$ref",
        "type",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "enum",
        "const",
        "oneOf",
        "anyOf",
        "minimum",
        "maximum",
        "minLength",
        "maxLength",
        "minProperties",
        "maxProperties",
        "x-notYet",
        "x-exact",
    ]);
    let texts = BTreeSet::from(["$schema", "title", "description", "format", "$defs"]);
    let types = BTreeSet::from(["null", "boolean", "integer", "string", "array", "object"]);
    let mut seen = 0_usize;
    visit(&schema(), &mut |name, value| {
        assert!(walked.contains(name) || texts.contains(name), "{name}");
        if name == "type" {
            let one = [value.clone()];
            let several = value.as_array().map_or(&one[..], Vec::as_slice);
            assert!(
                several
                    .iter()
                    .all(|each| types.contains(each.as_str().unwrap())),
                "{value}"
            );
        }
        seen += 1;
    });
    assert!(seen > 500, "{seen}");
}

/// Each key of the schema says what it is for.
#[test]
fn every_key_is_described() {
    let schema = schema();
    let definitions = schema["$defs"].as_object().unwrap().values();
    for definition in definitions.chain([&schema]) {
        for (name, key) in definition["properties"].as_object().into_iter().flatten() {
            assert!(key["description"].is_string(), "{name}: {key}");
        }
    }
    assert_eq!(schema["title"], "Configuration file");
    assert_eq!(schema["additionalProperties"], false);
    let connection = &schema["$defs"]["Connection"];
    assert_eq!(connection["required"], json!(["id", "provider"]));
}

/// A walk of the example changes nothing: it is valid as it stands.
#[test]
fn the_example_fits_the_schema_as_it_stands() {
    let text = include_str!("../../../../deploy/omniroute.example.yaml");
    let root = yaml::parse("example", text.as_bytes()).root.unwrap();
    let mut report = Report::new("example", Some(&root));
    let walked = shape::check(&root, &mut report);
    assert_eq!((report.problems, report.warnings), (vec![], vec![]));
    assert_eq!(walked, root.to_json());
}

/// Our reading of YAML against an independent one.
#[test]
fn our_yaml_reads_as_another_reader_does() {
    for text in [
        include_str!("../../../../deploy/omniroute.example.yaml"),
        include_str!("../../../testdata/config/warnings.yaml"),
        include_str!("../../../testdata/config/places.yaml"),
        include_str!("../../catalogue/providers.yaml"),
        "a: [1, -2, +3, 0x1f, 0o17, 1.5, 1., .5, 1e3, '1', \"1\", 1_000, 0x, 1e, ., true, True, yes, ~, null, Null, '']\nb: |\n  text\n  more\nc: >-\n  folded\n  text\n",
    ] {
        let ours = yaml::parse("x", text.as_bytes()).root.unwrap().to_json();
        let theirs: Json = serde_yaml_ng::from_str(text).unwrap();
        assert_eq!(ours, theirs);
    }
}

#[test]
fn paths_show_keys_and_places() {
    let path = Path::of("connections").index(2).key("a b").key("x-y");
    assert_eq!(path.to_string(), "connections[2].\"a b\".x-y");
}
