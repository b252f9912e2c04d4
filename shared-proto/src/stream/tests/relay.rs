//! What a caller can rely on besides the verdicts.

use super::*;

fn chat() -> StreamRelay {
    StreamRelay::new(Protocol::ChatCompletions, RelayOptions::default())
}

const HELLO: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hello\"}}]}\n\n";
const ROLE: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\"}}]}\n\n";
const FINISH: &str =
    "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";

#[test]
fn progress_tells_data_from_signs_of_life() {
    let mut relay = chat();
    let quiet = relay.push(Bytes::from_static(b": hi\n\n")).unwrap();
    assert_eq!(quiet, Progress::default());
    let handshake = relay.push(Bytes::from(ROLE)).unwrap();
    assert_eq!((handshake.data_events, handshake.committed), (1, false));
    assert_eq!(relay.take_output(), None);
    let content = relay.push(Bytes::from(HELLO.repeat(3))).unwrap();
    assert_eq!(
        content,
        Progress {
            data_events: 3,
            committed: true,
            terminal: false
        }
    );
    let end = relay
        .push(Bytes::from(format!("{FINISH}data: [DONE]\n\n")))
        .unwrap();
    assert_eq!(
        end,
        Progress {
            data_events: 2,
            committed: true,
            terminal: true
        }
    );
}

#[test]
fn neighbouring_events_go_out_as_the_slice_they_came_in() {
    let mut relay = chat();
    relay.push(Bytes::from(HELLO)).unwrap();
    assert_eq!(relay.take_output().unwrap(), HELLO);
    let chunk = Bytes::from(HELLO.repeat(20));
    let address = chunk.as_ptr();
    relay.push(chunk).unwrap();
    let output = relay.take_output().unwrap();
    assert_eq!(output, HELLO.repeat(20));
    assert_eq!(output.as_ptr(), address);
}

#[test]
fn output_of_several_reads_is_merged() {
    let mut relay = chat();
    for _ in 0..3 {
        relay.push(Bytes::from(HELLO)).unwrap();
    }
    assert_eq!(relay.take_output().unwrap(), HELLO.repeat(3));
    assert_eq!(relay.take_output(), None);
}

#[test]
fn a_failed_attempt_stays_failed() {
    let mut relay = chat();
    let error = Bytes::from_static(b"data: {\"error\":\"no\"}\n\n");
    let first = relay.push(error).unwrap_err();
    assert_eq!(first.kind, StreamFailureKind::ErrorEvent);
    assert_eq!(relay.push(Bytes::from(HELLO)).unwrap_err(), first);
    assert_eq!(relay.end(UpstreamEnd::Clean).unwrap_err(), first);
    assert_eq!(relay.take_output(), None);
    assert!(!relay.committed());
}

#[test]
fn what_was_committed_before_a_failure_can_still_be_taken() {
    let mut relay = chat();
    let chunk = format!("{HELLO}data: {{\"error\":\"no\"}}\n\n{HELLO}");
    relay.push(Bytes::from(chunk)).unwrap_err();
    assert_eq!(relay.take_output().unwrap(), HELLO);
}

#[test]
fn an_error_tail_brings_the_output_that_was_not_taken() {
    let mut relay = chat();
    relay.push(Bytes::from(HELLO)).unwrap();
    let tail = relay.error_tail(&ERROR);
    let error = "data: {\"error\":{\"message\":\"the upstream failed\",\"type\":\"server_error\",\
                 \"param\":null,\"code\":\"upstream_failed\"},\"request_id\":\"req-1\"}\n\n";
    assert_eq!(tail, format!("{HELLO}{error}"));
    assert_eq!(relay.error_tail(&ERROR), "");
    assert!(relay.push(Bytes::from(HELLO)).unwrap().terminal);
    assert_eq!(relay.take_output(), None);
}

#[test]
fn an_error_tail_before_the_commit_point_shows_no_handshake() {
    for (protocol, expected) in [
        (Protocol::ChatCompletions, "data: {\"error\":"),
        (Protocol::Messages, "event: error\ndata: "),
        (Protocol::Responses, "event: response.failed\ndata: "),
    ] {
        let mut relay = StreamRelay::new(protocol, RelayOptions::default());
        let handshake = "data: {\"type\":\"content_block_start\",\"index\":0,\
                         \"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n";
        relay.push(Bytes::from(handshake)).unwrap();
        let tail = relay.error_tail(&ERROR);
        assert!(tail.starts_with(expected.as_bytes()), "{tail:?}");
        assert_eq!(tail.windows(2).filter(|pair| pair == b"\n\n").count(), 1);
    }
}

#[test]
fn no_error_tail_after_a_good_end() {
    let mut relay = chat();
    relay.push(Bytes::from(format!("{HELLO}{FINISH}"))).unwrap();
    relay.end(UpstreamEnd::Clean).unwrap();
    let rest = relay.error_tail(&ERROR);
    assert_eq!(rest, format!("{HELLO}{FINISH}data: [DONE]\n\n"));
    assert_eq!(relay.end(UpstreamEnd::Cut), Ok(()));
}

#[test]
fn a_failed_response_goes_on_counting() {
    let mut relay = StreamRelay::new(Protocol::Responses, RelayOptions::default());
    let delta = "data: {\"type\":\"response.output_text.delta\",\"delta\":\"a\",\"sequence_number\":41}\n\n";
    relay.push(Bytes::from(delta)).unwrap();
    let tail = relay.error_tail(&ERROR);
    let text = std::str::from_utf8(&tail).unwrap();
    assert!(text.contains("\"sequence_number\":42,"), "{text}");
    assert!(text.contains("\"id\":\"resp_failed\""), "{text}");
}

#[test]
fn embeddings_are_never_streamed() {
    let body = "{\"object\":\"list\",\"data\":[{\"embedding\":[0.5]}]}";
    let mut relay = StreamRelay::new(Protocol::Embeddings, RelayOptions::default());
    relay.push(Bytes::from(body)).unwrap();
    let failure = relay.end(UpstreamEnd::Clean).unwrap_err();
    assert_eq!(failure.kind, StreamFailureKind::Garbage);
}

#[test]
fn many_tool_calls_are_followed_up_to_a_bound() {
    let mut relay = chat();
    for index in 0..2000 {
        let chunk = format!(
            "data: {{\"choices\":[{{\"delta\":{{\"tool_calls\":[{{\"index\":{index},\"id\":\"c{index}\",\
             \"function\":{{\"name\":\"f\",\"arguments\":\"{{}}\"}}}}]}}}}]}}\n\n"
        );
        relay.push(Bytes::from(chunk.clone())).unwrap();
        assert_eq!(relay.take_output().unwrap(), chunk);
    }
}

#[test]
fn content_types() {
    for (header, expected) in [
        (
            Some("text/event-stream; charset=utf-8"),
            ContentType::EventStream,
        ),
        (Some("Application/JSON"), ContentType::Json),
        (Some("application/problem+json"), ContentType::Json),
        (Some("text/html;charset=x"), ContentType::Html),
        (Some("text/plain"), ContentType::Unknown),
        (None, ContentType::Unknown),
    ] {
        assert_eq!(ContentType::parse(header), expected, "{header:?}");
    }
}

#[test]
fn words_are_distinct() {
    let words: std::collections::BTreeSet<_> = Quirk::ALL.into_iter().map(Quirk::as_str).collect();
    assert_eq!(words.len(), Quirk::ALL.len());
    let mut quirks = Quirks::default();
    quirks.add(Quirk::LateContent);
    assert!(quirks.has(Quirk::LateContent) && !quirks.has(Quirk::WholeAnswer));
}
