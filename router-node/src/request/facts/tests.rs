//! What is read of a body, and that both ways of reading it agree.

mod agree;

use super::Facts;
use bytes::Bytes;
use proptest::prelude::*;
use shared_proto::protocol::Protocol;

fn read(body: &str) -> Result<Facts, String> {
    Facts::read(
        Protocol::ChatCompletions,
        Bytes::copy_from_slice(body.as_bytes()),
    )
    .map_err(|error| error.code)
}

fn sent(facts: &Facts, model: &str) -> Vec<u8> {
    use http_body_util::BodyExt as _;
    let body = facts.body_for(model);
    let length = body.len();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let bytes = runtime.block_on(body.collect()).unwrap().to_bytes();
    assert_eq!(bytes.len() as u64, length);
    bytes.to_vec()
}

#[test]
fn only_the_models_value_changes() {
    let body = "{ \"x\":[1.0e3,\"\\u0041\"],\"model\" : \"p\\u002fm\", \"stream\":true}";
    let facts = read(body).unwrap();
    assert_eq!(facts.model, "p/m");
    assert!(facts.stream);
    let expected = "{ \"x\":[1.0e3,\"\\u0041\"],\"model\" : \"a\\\"b\", \"stream\":true}";
    assert_eq!(sent(&facts, "a\"b"), expected.as_bytes());
}

#[test]
fn a_large_body_is_sent_in_pieces_with_the_same_bytes() {
    let filler = "y".repeat(100_000);
    let facts = read(&format!("{{\"a\":\"{filler}\",\"model\":\"p/m\",\"b\":2}}")).unwrap();
    let expected = format!("{{\"a\":\"{filler}\",\"model\":\"m\",\"b\":2}}");
    assert_eq!(sent(&facts, "m"), expected.as_bytes());
}

#[test]
fn what_is_wrong_is_named() {
    for (body, code) in [
        ("", "invalid_json"),
        ("[]", "invalid_json"),
        ("{\"model\":\"a\"", "invalid_json"),
        ("{\"model\":\"a\"} x", "invalid_json"),
        ("{\"model\":\"a\",\"model\":\"b\"}", "invalid_json"),
        ("[\"a\",true]", "invalid_json"),
        ("{}", "missing_model"),
        ("{\"model\":null}", "missing_model"),
        ("{\"model\":7}", "invalid_model"),
        ("{\"model\":\"  \"}", "invalid_model"),
        ("{\"model\":\"a\",\"stream\":\"yes\"}", "invalid_stream"),
    ] {
        assert_eq!(read(body).unwrap_err(), code, "{body}");
    }
}

#[test]
fn the_place_of_an_error_is_told() {
    let body = Bytes::from_static(b"{\"model\":\"a\",\n\"x\":[1,]}");
    let error = Facts::read(Protocol::Messages, body).unwrap_err();
    assert!(error.message.ends_with("at line 2 column 8"), "{error:?}");
}

#[test]
fn deep_nesting_is_not_our_problem() {
    let deep = format!(
        "{{\"model\":\"a\",\"x\":{}{}}}",
        "[".repeat(50_000),
        "]".repeat(50_000)
    );
    assert_eq!(read(&deep).unwrap().model, "a");
}

proptest! {
    #[test]
    fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        drop(Facts::read(Protocol::Messages, Bytes::from(bytes)));
    }
}
