//! Every fixture of `testdata/streams`, fed whole and in every two pieces.

#![expect(clippy::arithmetic_side_effects, reason = "lengths of small test data")]

mod props;
mod relay;
mod units;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use bytes::Bytes;
use serde::Deserialize;

use super::*;
use crate::protocol::Protocol;

/// One line of `cases.yaml`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Case {
    pub(super) file: String,
    protocol: String,
    outcome: String,
    output: String,
    #[serde(default)]
    content_type: Option<String>,
    #[serde(default)]
    end: Option<String>,
    #[serde(default)]
    lenient: bool,
    #[serde(default)]
    asked: Option<u64>,
    #[serde(default)]
    holdback: Option<usize>,
    #[serde(default)]
    event_bytes: Option<usize>,
    #[serde(default)]
    prefix_events: usize,
    #[serde(default)]
    plus: String,
    #[serde(default)]
    body: Option<String>,
    #[serde(default)]
    tail: Option<String>,
    #[serde(default)]
    finish: Option<String>,
    #[serde(default)]
    usage: Option<[Option<u64>; 3]>,
    #[serde(default)]
    quirks: Vec<String>,
    #[serde(default)]
    data_events: Option<u32>,
    #[serde(default)]
    committed: Option<bool>,
}

/// Everything a caller can see of one attempt.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) result: Result<(), StreamFailure>,
    pub(super) output: Vec<u8>,
    pub(super) committed: bool,
    data_events: u32,
    usage: Option<Usage>,
    finish: Option<String>,
    quirks: Vec<&'static str>,
    pub(super) tail: Vec<u8>,
}

const ERROR: InBandError<'static> = InBandError {
    kind: "server_error",
    code: Some("upstream_failed"),
    message: "the upstream failed",
    request_id: Some("req-1"),
};

impl Case {
    pub(super) fn protocol(&self) -> Protocol {
        Protocol::ALL
            .into_iter()
            .find(|protocol| protocol.as_str() == self.protocol)
            .unwrap()
    }

    pub(super) fn options(&self) -> RelayOptions {
        let standard = RelayOptions::default();
        RelayOptions {
            content_type: ContentType::parse(self.content_type.as_deref()),
            lenient_end: self.lenient,
            holdback_bytes: self.holdback.unwrap_or(standard.holdback_bytes),
            event_bytes: self.event_bytes.unwrap_or(standard.event_bytes),
            asked_max_tokens: self.asked,
        }
    }

    pub(super) fn end(&self) -> UpstreamEnd {
        match self.end.as_deref() {
            Some("cut") => UpstreamEnd::Cut,
            None => UpstreamEnd::Clean,
            Some(other) => panic!("{other}"),
        }
    }

    pub(super) fn input(&self) -> Vec<u8> {
        std::fs::read(folder().join(&self.file)).unwrap()
    }

    fn neighbour(&self, extension: &str) -> Vec<u8> {
        let path = folder().join(format!("{}.{extension}", self.file));
        std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    fn expected_output(&self, input: &[u8]) -> Vec<u8> {
        match self.output.as_str() {
            "none" => Vec::new(),
            "same" => input.to_vec(),
            "plus" => [input, self.plus.as_bytes()].concat(),
            "strip_bom" => input[3..].to_vec(),
            "prefix" => {
                let text = std::str::from_utf8(input).unwrap();
                let blocks = text.split_inclusive("\n\n").take(self.prefix_events);
                blocks.collect::<String>().into_bytes()
            }
            "golden" => self.neighbour("out"),
            other => panic!("{other}"),
        }
    }

    /// Feeds the pieces, one read each, and plays the caller to the end.
    pub(super) fn run<'a>(&self, pieces: impl IntoIterator<Item = &'a [u8]>) -> Seen {
        let mut relay = StreamRelay::new(self.protocol(), self.options());
        let mut seen = Seen {
            result: Ok(()),
            output: Vec::new(),
            committed: false,
            data_events: 0,
            usage: None,
            finish: None,
            quirks: Vec::new(),
            tail: Vec::new(),
        };
        for piece in pieces {
            match relay.push(Bytes::copy_from_slice(piece)) {
                Ok(progress) => {
                    assert_eq!(progress.committed, relay.committed());
                    seen.data_events += progress.data_events;
                }
                Err(failure) => {
                    // How many came before depends on how they were cut.
                    seen.data_events = 0;
                    seen.result = Err(failure);
                }
            }
            let output = relay.take_output();
            assert!(output.is_none() || relay.committed());
            seen.output.extend(output.unwrap_or_default());
            if seen.result.is_err() {
                break;
            }
        }
        if seen.result.is_ok() {
            seen.result = relay.end(self.end());
            seen.output.extend(relay.take_output().unwrap_or_default());
        }
        seen.committed = relay.committed();
        seen.usage = relay.usage();
        seen.finish = relay.finish_reason().map(str::to_owned);
        seen.quirks = relay.quirks().iter().map(Quirk::as_str).collect();
        seen.tail = relay.error_tail(&ERROR).to_vec();
        seen
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/streams")
}

pub(super) fn cases() -> &'static [Case] {
    static CASES: OnceLock<Vec<Case>> = OnceLock::new();
    CASES.get_or_init(|| {
        let text = std::fs::read_to_string(folder().join("cases.yaml")).unwrap();
        serde_yaml_ng::from_str(&text).unwrap()
    })
}

fn check(case: &Case, seen: &Seen, input: &[u8]) {
    let name = &case.file;
    let outcome = seen
        .result
        .as_ref()
        .map_or_else(|failure| failure.kind.as_str(), |()| "ok");
    assert_eq!(outcome, case.outcome, "{name}");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let expected = case.expected_output(input);
    assert_eq!(text(&seen.output), text(&expected), "{name}");
    assert_eq!(seen.output, expected, "{name}");
    let body = seen.result.as_ref().err();
    let body = body.and_then(|failure| failure.error_body.as_deref().map(text));
    let json = |text: &String| serde_json::from_str::<serde_json::Value>(text).unwrap();
    assert_eq!(
        body.as_ref().map(json),
        case.body.as_ref().map(json),
        "{name}"
    );
    assert_eq!(seen.finish, case.finish, "{name}");
    let usage = seen
        .usage
        .map(|usage| [usage.input, usage.output, usage.cached]);
    assert_eq!(usage, case.usage, "{name}");
    let mut quirks = case.quirks.clone();
    quirks.sort_by_key(|quirk| Quirk::ALL.iter().position(|known| known.as_str() == quirk));
    assert_eq!(seen.quirks, quirks, "{name}");
    if let Some(events) = case.data_events {
        assert_eq!(seen.data_events, events, "{name}");
    }
    let committed = case.committed.unwrap_or(case.outcome == "ok");
    assert_eq!(seen.committed, committed, "{name}");
    match case.tail.as_deref() {
        Some("golden") => assert_eq!(text(&seen.tail), text(&case.neighbour("tail")), "{name}"),
        Some(other) => panic!("{other}"),
        None => assert_eq!(seen.tail.is_empty(), seen.result.is_ok(), "{name}"),
    }
}

#[test]
fn every_fixture_whole() {
    for case in cases() {
        let input = case.input();
        check(case, &case.run([&input[..]]), &input);
    }
}

#[test]
fn every_fixture_byte_by_byte() {
    for case in cases() {
        let input = case.input();
        check(case, &case.run(input.chunks(1)), &input);
    }
}

#[test]
fn every_fixture_at_every_split() {
    for case in cases() {
        let input = case.input();
        let whole = case.run([&input[..]]);
        for at in 0..=input.len() {
            let (head, tail) = input.split_at(at);
            assert_eq!(case.run([head, tail]), whole, "{} at {at}", case.file);
        }
    }
}

#[test]
fn every_fixture_file_has_a_case() {
    let listed: Vec<PathBuf> = cases()
        .iter()
        .map(|case| folder().join(&case.file))
        .collect();
    let mut files = 0;
    for protocol in ["chat", "messages", "responses"] {
        for entry in std::fs::read_dir(folder().join(protocol)).unwrap() {
            let path = entry.unwrap().path();
            let golden = path
                .extension()
                .is_some_and(|extension| extension == "out" || extension == "tail");
            let of = path.with_extension("");
            assert!(
                listed.contains(if golden { &of } else { &path }),
                "{path:?}"
            );
            files += usize::from(!golden);
        }
    }
    assert_eq!(files, listed.len());
}
