//! Whatever comes in, cut wherever it may be.

#![expect(clippy::arithmetic_side_effects, reason = "lengths of small test data")]

use proptest::prelude::*;

use super::{Case, Seen, cases};
use crate::protocol::Protocol;
use crate::sse::Decoder;

/// One change to a stream.
#[derive(Clone, Debug)]
enum Change {
    Remove(usize, usize),
    Repeat(usize, usize),
    Set(usize, u8),
    Insert(usize, Vec<u8>),
}

fn change() -> impl Strategy<Value = Change> {
    let snippets = prop::sample::select(vec![
        "\n\n",
        "\r",
        "\r\n",
        "data:",
        "data: [DONE]\n\n",
        "event: error\n",
        ": x\n\n",
        "data: {\"error\":{\"message\":\"no\"}}\n\n",
        "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n",
        "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n",
        "data: {\"type\":\"message_stop\"}\n\n",
        "data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":5}}\n\n",
        "data: {\"type\":\"response.completed\",\"response\":{\"output\":[]}}\n\n",
        "null",
        "\\",
        "\"",
        "\u{1F980}",
    ]);
    prop_oneof![
        (any::<usize>(), 0..200_usize).prop_map(|(at, len)| Change::Remove(at, len)),
        (any::<usize>(), 0..400_usize).prop_map(|(at, len)| Change::Repeat(at, len)),
        (any::<usize>(), any::<u8>()).prop_map(|(at, byte)| Change::Set(at, byte)),
        (any::<usize>(), snippets)
            .prop_map(|(at, text)| Change::Insert(at, text.as_bytes().to_vec())),
    ]
}

fn mutate(mut bytes: Vec<u8>, changes: &[Change]) -> Vec<u8> {
    for change in changes {
        let len = bytes.len().max(1);
        match change {
            Change::Remove(at, count) => {
                let start = (at % len).min(bytes.len());
                bytes.drain(start..(start + count).min(bytes.len()));
            }
            Change::Repeat(at, count) => {
                let start = (at % len).min(bytes.len());
                let end = (start + count).min(bytes.len());
                let piece = bytes[start..end].to_vec();
                bytes.splice(end..end, piece);
            }
            Change::Set(at, byte) => {
                if let Some(slot) = bytes.get_mut(at % len) {
                    *slot = *byte;
                }
            }
            Change::Insert(at, piece) => {
                let start = (at % len).min(bytes.len());
                bytes.splice(start..start, piece.iter().copied());
            }
        }
    }
    bytes
}

fn pieces<'a>(bytes: &'a [u8], cuts: &[usize]) -> Vec<&'a [u8]> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
    cuts.sort_unstable();
    let mut start = 0;
    let mut pieces = Vec::new();
    for cut in cuts.into_iter().chain([bytes.len()]) {
        pieces.push(&bytes[start..cut]);
        start = cut;
    }
    pieces
}

/// How many events of a client's stream would end it.
fn terminal_marks(protocol: Protocol, stream: &[u8]) -> usize {
    let mut decoder = Decoder::new(usize::MAX);
    decoder.push(bytes::Bytes::copy_from_slice(stream));
    let mut marks = 0;
    while let Some(event) = decoder.next().unwrap() {
        let Some(data) = event.data().map(<[u8]>::trim_ascii) else {
            continue; // nothing is dispatched without data
        };
        let text = String::from_utf8_lossy(data);
        let json: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        let name = String::from_utf8_lossy(event.name()).into_owned();
        let kind = json
            .get("type")
            .and_then(|kind| kind.as_str())
            .filter(|kind| !kind.is_empty())
            .unwrap_or(&name);
        marks += usize::from(match protocol {
            Protocol::ChatCompletions | Protocol::Embeddings => {
                let error = json.get("error").and_then(serde_json::Value::as_object);
                data == b"[DONE]" || error.is_some_and(|error| !error.is_empty())
            }
            Protocol::Responses => matches!(
                kind,
                "response.completed" | "response.incomplete" | "response.failed" | "response.done"
            ),
            Protocol::Messages => matches!(kind, "message_stop" | "error"),
        });
    }
    marks
}

fn sound(case: &Case, seen: &Seen) -> Result<(), TestCaseError> {
    if !seen.committed {
        prop_assert!(seen.output.is_empty());
    }
    let stream = [&seen.output[..], &seen.tail].concat();
    let marks = terminal_marks(case.protocol(), &stream);
    prop_assert_eq!(marks, 1, "{}", String::from_utf8_lossy(&stream));
    if let Err(failure) = &seen.result {
        prop_assert!(!failure.message().is_empty());
        prop_assert_eq!(terminal_marks(case.protocol(), &seen.output), 0);
        if let Some(body) = &failure.error_body {
            let body: Result<serde_json::Value, _> = serde_json::from_slice(body);
            prop_assert!(body.is_ok_and(|body| body.is_object()));
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn changed_fixtures_do_not_depend_on_the_cuts(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec(change(), 0..6),
        cuts in prop::collection::vec(any::<usize>(), 0..8),
    ) {
        let cases = cases();
        let case = &cases[which.index(cases.len())];
        let input = mutate(case.input(), &changes);
        let whole = case.run([&input[..]]);
        sound(case, &whole)?;
        prop_assert_eq!(case.run(pieces(&input, &cuts)), whole);
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        which in any::<prop::sample::Index>(),
        input in prop::collection::vec(any::<u8>(), 0..300),
        cuts in prop::collection::vec(any::<usize>(), 0..8),
    ) {
        let cases = cases();
        let case = &cases[which.index(cases.len())];
        let whole = case.run([&input[..]]);
        sound(case, &whole)?;
        prop_assert_eq!(case.run(pieces(&input, &cuts)), whole);
    }

    #[test]
    fn streams_of_snippets(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec(change(), 0..20),
        cuts in prop::collection::vec(any::<usize>(), 0..8),
    ) {
        let cases = cases();
        let case = &cases[which.index(cases.len())];
        let input = mutate(b"\n".to_vec(), &changes);
        let whole = case.run([&input[..]]);
        sound(case, &whole)?;
        prop_assert_eq!(case.run(pieces(&input, &cuts)), whole);
    }
}
