//! Instructions and the answers to them.

use std::time::Duration;

use super::{Ask, Replies, Stream};

fn stream(events: u32, micros: u64) -> Ask {
    Ask::Stream(Stream {
        events,
        interval: Duration::from_micros(micros),
    })
}

#[test]
fn the_user_field_says_what_to_answer() {
    let table = [
        (r#"{"user":"bench/plain"}"#, Some(Ask::Plain)),
        (r#"{"user": "bench/stream/20/0"}"#, Some(stream(20, 0))),
        (
            r#"{"user":"bench/stream/200/5000","n":1}"#,
            Some(stream(200, 5000)),
        ),
        (r#"{"user":"bench/stream/2/0"}"#, None),
        (r#"{"user":"bench/stream/10001/0"}"#, None),
        (r#"{"user":"bench/stream/20"}"#, None),
        (r#"{"user":"bench/plain/1"}"#, None),
        (r#"{"user":"bench/other"}"#, None),
        (r#"{"user":"bench/plain"#, None),
        (r#"{"user":"someone"}"#, None),
        ("", None),
    ];
    for (body, ask) in table {
        assert_eq!(Ask::of(body.as_bytes()), ask, "{body}");
    }
}

#[test]
fn a_plain_answer_is_as_long_as_it_says_and_tells_the_size() {
    let mut out = Vec::new();
    Replies::new().plain(&mut out, 204_800);
    let text = String::from_utf8(out).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.ends_with(&format!("content-length: {}", body.len())));
    let json: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(json["system_fingerprint"], "received-0000204800");
}

#[test]
fn a_stream_has_the_events_asked_for_and_an_end() {
    let mut out = Vec::new();
    let Some(Ask::Stream(stream)) = Ask::of(br#"{"user":"bench/stream/20/0"}"#) else {
        panic!("no stream");
    };
    Replies::new().ready_stream(&mut out, stream);
    let text = String::from_utf8(out).unwrap();
    assert!(text.ends_with("data: [DONE]\n\n\r\n0\r\n\r\n"));
    let events = text.lines().filter_map(|line| line.strip_prefix("data: {"));
    let events: Vec<serde_json::Value> = events
        .map(|rest| serde_json::from_str(&format!("{{{rest}")).unwrap())
        .collect();
    assert_eq!(events.len(), 20);
    assert_eq!(events[19]["choices"][0]["finish_reason"], "stop");
}
