//! Whole files with their expected problems written beside the faulty lines:
//! `#!` a problem, `#?` a warning. `#env` and `#file` lines make the
//! surroundings (`|` is a line break), `#outside` expects a warning without a line.

use super::{Loaded, Problem, Surroundings, load_text};

/// Line and text of each expectation.
type Expected = Vec<(usize, String)>;

fn surroundings(text: &str) -> Surroundings {
    let mut env = Surroundings::default();
    for line in text.lines() {
        let own = |pair: &str| {
            let (name, value) = pair.split_once('=').unwrap();
            (name.to_owned(), value.replace('|', "\n"))
        };
        if let Some(pair) = line.strip_prefix("#env ") {
            env.variables.extend([own(pair)]);
        } else if let Some(pair) = line.strip_prefix("#file ") {
            env.files.extend([own(pair)]);
        }
    }
    env
}

fn expected(text: &str, mark: &str) -> Expected {
    let mut all: Expected = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if mark == " #? "
            && let Some(message) = line.strip_prefix("#outside ")
        {
            all.push((0, message.to_owned()));
        }
        let messages = line.split(mark).skip(1);
        all.extend(messages.map(|message| (number.saturating_add(1), message.trim().to_owned())));
    }
    all.sort();
    all
}

fn told(problems: &[Problem]) -> Expected {
    let mut all: Expected = problems
        .iter()
        .map(|problem| {
            let whole = problem.to_string();
            let place = match problem.line {
                0 => format!("{}: ", problem.file),
                line => format!("{}:{line}:{}: ", problem.file, problem.column),
            };
            (problem.line, whole.strip_prefix(&place).unwrap().to_owned())
        })
        .collect();
    all.sort();
    all
}

fn compare(name: &str, found: &[Problem], text: &str, mark: &str) {
    let (found, expected) = (told(found), expected(text, mark));
    assert!(!expected.is_empty(), "{name} expects nothing");
    for (line, message) in &found {
        assert!(
            expected.contains(&(*line, message.clone())),
            "{name}: not expected: {line}: {message}\n{found:#?}"
        );
    }
    for wanted in &expected {
        assert!(
            found.contains(wanted),
            "{name}: not found: {wanted:?}\n{found:#?}"
        );
    }
    assert_eq!(found.len(), expected.len(), "{name}");
}

fn refused(name: &str, text: &str) {
    let problems = load_text(text, &surroundings(text)).unwrap_err();
    compare(name, &problems, text, " #! ");
    let lines: Vec<usize> = problems.iter().map(|problem| problem.line).collect();
    assert!(lines.is_sorted(), "{name}: {lines:?}");
    let all = format!("{problems:?}");
    assert!(!all.contains("secret@"), "{name} shows a secret");
}

#[test]
fn every_fault_of_shape_is_told_at_its_line() {
    refused(
        "shape.yaml",
        include_str!("../../../testdata/config/shape.yaml"),
    );
}

#[test]
fn every_broken_reference_is_told_at_its_line() {
    refused(
        "references.yaml",
        include_str!("../../../testdata/config/references.yaml"),
    );
}

#[test]
fn every_faulty_address_and_secret_is_told_at_its_line() {
    refused(
        "places.yaml",
        include_str!("../../../testdata/config/places.yaml"),
    );
}

#[test]
fn what_works_differently_is_a_warning_at_its_line() {
    let text = include_str!("../../../testdata/config/warnings.yaml");
    let Loaded { warnings, .. } =
        load_text(text, &surroundings(text)).unwrap_or_else(|problems| panic!("{problems:#?}"));
    compare("warnings.yaml", &warnings, text, " #? ");
}

#[test]
fn the_commented_example_loads_without_a_word() {
    let text = include_str!("../../../../deploy/omniroute.example.yaml");
    let mut env = Surroundings::with(&[
        ("OMNIROUTE_ADMIN_TOKEN", "0123456789abcdef0123456789abcdef"),
        ("OPENAI_API_KEY", "sk-1"),
        ("ACME_KEY", "ak-1"),
        ("CLAUDE_ACCESS_TOKEN", "at-1"),
        ("CLAUDE_REFRESH_TOKEN", "rt-1"),
        ("PLAN_CLIENT_SECRET", "cs-1"),
        (
            "OMNIROUTE_SECRET_KEY",
            "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
        ),
        ("AZURE_OPENAI_API_KEY", "az-1"),
        ("OPERATIONS_KEY", "or-0123456789abcdef0123456789abcdef"),
    ]);
    env.files
        .insert("/run/secrets/openai-2".to_owned(), "sk-2\n".to_owned());
    let loaded = load_text(text, &env).unwrap_or_else(|problems| panic!("{problems:#?}"));
    assert_eq!(loaded.warnings, []);
    let sections = [
        "server:",
        "store:",
        "providers:",
        "connections:",
        "combos:",
        "apiKeys:",
        "settings:",
    ];
    for section in sections {
        assert!(text.lines().any(|line| line == section), "{section}");
    }
    // What the example calls defaults are the defaults.
    let built_in = super::super::Settings::default();
    let shown = super::super::Settings {
        custom_banned_signals: Vec::new(),
        ..loaded.config.settings
    };
    assert_eq!(shown, built_in);
}
