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

fn responses(body: &str) -> Facts {
    let body = Bytes::copy_from_slice(body.as_bytes());
    Facts::read(Protocol::Responses, body).unwrap()
}

#[test]
fn background_is_taken_out_of_the_body_wherever_it_stands() {
    for (before, after) in [
        ("{\"background\":true,\"model\":\"m\"}", "{\"model\":\"m\"}"),
        (
            "{\"model\":\"m\" , \"background\" : true }",
            "{\"model\":\"m\"  }",
        ),
        (
            "{\"model\":\"m\",\n \"background\":true,\n \"input\":\"x\"}",
            "{\"model\":\"m\",\n \n \"input\":\"x\"}",
        ),
        (
            "{\"model\":\"m\",\"b\\u0061ckground\":true}",
            "{\"model\":\"m\",\"b\\u0061ckground\":false}",
        ),
    ] {
        let facts = responses(before);
        assert!(facts.background, "{before}");
        assert_eq!(facts.body, after);
        assert_eq!(facts.model, "m");
    }
    for body in [
        "{\"model\":\"m\",\"background\":false}",
        "{\"model\":\"m\",\"background\":null}",
        "{\"model\":\"m\",\"x\":{\"background\":true}}",
    ] {
        let facts = responses(body);
        assert!(!facts.background);
        assert_eq!(facts.body, body);
    }
    let chat = read("{\"model\":\"m\",\"background\":true}").unwrap();
    assert!(!chat.background, "a field of Responses");
}

#[test]
fn tools_are_counted() {
    for (tools, count) in [
        ("[]", 0),
        ("[ ]", 0),
        ("[{}]", 1),
        ("[{\"a\":[1,2,3]},{\"b\":\"],[\"} , {}]", 3),
        ("null", 0),
        ("{\"a\":1}", 0),
        ("7", 0),
    ] {
        let facts = read(&format!("{{\"model\":\"m\",\"tools\":{tools}}}")).unwrap();
        assert_eq!(facts.tools(), count, "{tools}");
    }
    assert_eq!(read("{\"model\":\"m\"}").unwrap().tools(), 0);
}

#[test]
fn answers_are_kept_short() {
    let capped = |protocol, body: &str| {
        let body = Bytes::copy_from_slice(body.as_bytes());
        let facts = Facts::read(protocol, body).unwrap();
        facts.capped(protocol, 4096).unwrap()
    };
    let chat = Protocol::ChatCompletions;
    for (before, after) in [
        ("{\"model\":\"m\"}", "{\"max_tokens\":4096,\"model\":\"m\"}"),
        (
            "{\"model\":\"m\",\"max_tokens\":5000,\"max_completion_tokens\":100}",
            "{\"model\":\"m\",\"max_tokens\":4096,\"max_completion_tokens\":100}",
        ),
        (
            "{\"max_completion_tokens\":99999,\"model\":\"m\"}",
            "{\"max_completion_tokens\":4096,\"model\":\"m\"}",
        ),
    ] {
        let facts = capped(chat, before);
        assert_eq!(facts.body, after);
        assert!(facts.max_tokens.unwrap() <= 4096);
    }
    let facts = capped(Protocol::Responses, "{\"model\":\"m\"}");
    assert_eq!(facts.body, "{\"max_output_tokens\":4096,\"model\":\"m\"}");
}
