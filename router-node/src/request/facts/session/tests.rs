//! Every place that names a session, in its order, and bodies of all shapes.

use actix_web::http::header::{HeaderMap, HeaderName, HeaderValue};
use proptest::prelude::*;
use serde_json::{Value, json};
use shared_proto::protocol::Protocol;

use super::{HEADERS, session};

fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in pairs {
        let name = HeaderName::from_static(name);
        map.insert(name, HeaderValue::from_str(value).unwrap());
    }
    map
}

fn of(protocol: Protocol, body: &Value) -> Option<String> {
    session(protocol, &HeaderMap::new(), body.to_string().as_bytes())
}

fn chat(body: &Value) -> Option<String> {
    of(Protocol::ChatCompletions, body)
}

#[test]
fn headers_go_first_in_their_order() {
    // SA-01, SA-02
    let body = json!({"session_id": "of the body"}).to_string();
    let all = [(HEADERS[0], "c1"), (HEADERS[1], "s1"), (HEADERS[2], "o1")];
    for at in 0..3 {
        let named = session(Protocol::Messages, &headers(&all[at..]), body.as_bytes());
        assert_eq!(named.as_deref(), Some(all[at].1));
    }
    let blank = headers(&[(HEADERS[0], " "), (HEADERS[1], " s1 ")]);
    let named = session(Protocol::Messages, &blank, body.as_bytes());
    assert_eq!(named.as_deref(), Some("s1"));
}

#[test]
fn fields_follow_in_their_order() {
    let full = json!({
        "model": "m",
        "metadata": {"session_id": "1", "sessionId": "2"},
        "conversation_id": "3", "session_id": "4", "prompt_cache_key": "5",
        "messages": [{"role": "user", "content": "hello"}],
    });
    let mut body = full;
    for (at, gone) in [
        "/metadata/session_id",
        "/metadata/sessionId",
        "/conversation_id",
        "/session_id",
        "/prompt_cache_key",
    ]
    .iter()
    .enumerate()
    {
        assert_eq!(chat(&body), Some((at + 1).to_string()));
        for nothing in [
            json!(""),
            json!("  "),
            json!(7),
            json!({"a": 1}),
            Value::Null,
        ] {
            *body.pointer_mut(gone).unwrap() = nothing;
            assert_ne!(chat(&body), Some((at + 1).to_string()));
        }
    }
    assert!(chat(&body).unwrap().starts_with("input:sha256:"));
}

#[test]
fn the_first_users_text_is_hashed() {
    // SA-04
    let hello = "input:sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
    for messages in [
        json!([{"role": "system", "content": "sys"}, {"role": "user", "content": "hello"}]),
        json!([{"role": "user", "content": "hello"}, {"role": "user", "content": "more"}]),
        json!([{"content": [{"type": "image"}, {"type": "text", "text": "hello"}], "role": "user"}]),
        json!([{"role": "user", "content": ["hello"]}]),
        json!([{"role": "system", "content": "hello"}, {"role": "assistant", "content": "x"}]),
    ] {
        let body = json!({"messages": messages});
        assert_eq!(chat(&body).as_deref(), Some(hello), "{body}");
        assert_eq!(of(Protocol::Messages, &body).as_deref(), Some(hello));
    }
    for input in [
        json!("hello"),
        json!([{"type": "reasoning"}, {"role": "user", "content": "hello"}]),
        json!([{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}]),
        json!([{"type": "input_text", "text": "hello"}]),
    ] {
        let body = json!({"input": input});
        assert_eq!(
            of(Protocol::Responses, &body).as_deref(),
            Some(hello),
            "{body}"
        );
        assert_eq!(of(Protocol::Embeddings, &body), None);
    }
    let escaped = br#"{"messages": [{"role": "user", "content": "h\u0065llo"}]}"#;
    let odd_names = br#"{"m\u0065ssages": [{"role": "us\u0065r", "content": "hello"}]}"#;
    for body in [&escaped[..], odd_names] {
        let named = session(Protocol::ChatCompletions, &HeaderMap::new(), body);
        assert_eq!(named.as_deref(), Some(hello));
    }
}

#[test]
fn only_its_start_counts() {
    let of_text = |text: String| chat(&json!({"messages": [{"role": "user", "content": text}]}));
    for letter in ["x", "é", "😀"] {
        let start = letter.repeat(4096);
        assert_eq!(of_text(format!("{start}a")), of_text(format!("{start}b")));
        assert_eq!(of_text(format!("{start}a")), of_text(start.clone()));
        let shorter = letter.repeat(4095);
        assert_ne!(of_text(format!("{shorter}a")), of_text(start));
    }
}

#[test]
fn where_nothing_says_it_there_is_none() {
    for body in [
        json!({}),
        json!({"messages": []}),
        json!({"messages": "hello"}),
        json!({"messages": [{"role": "user", "content": ""}]}),
        json!({"messages": [{"role": "user", "content": [{"type": "image"}]}]}),
        json!({"messages": [1, null, "x"]}),
        json!({"messages": [{"role": "user"}]}),
        json!({"metadata": "s"}),
        json!([]),
    ] {
        let named = chat(&body);
        assert!(
            named.is_none() || body["messages"][2] == "x",
            "{body}: {named:?}"
        );
    }
}

proptest! {
    #[test]
    fn no_body_is_too_odd(body in prop::collection::vec(any::<u8>(), 0..200), at in 0_usize..4) {
        let protocol = Protocol::ALL[at];
        session(protocol, &HeaderMap::new(), &body);
        let wrapped = [&br#"{"messages": ["#[..], &body, b"], \"input\": [", &body, b"]}"].concat();
        session(protocol, &HeaderMap::new(), &wrapped);
    }
}
