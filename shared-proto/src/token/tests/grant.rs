//! Grants as they are written and answered.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use proptest::prelude::*;
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};

use super::at;
use crate::clock::Millis;
use crate::token::{
    Answer, ClientAuth, GrantBody, TokenEndpoint, mark, read_answer, request, told_expiry,
};

fn endpoint() -> TokenEndpoint {
    TokenEndpoint {
        url: "https://acme.example/token".into(),
        client_id: Some("the client".into()),
        client_secret: None,
        client_auth: ClientAuth::Body,
        body: GrantBody::Form,
        scopes: Vec::new(),
    }
}

fn written(endpoint: &TokenEndpoint) -> (String, Option<String>) {
    let grant = request(endpoint, &"r/1+ü".into());
    let authorization = grant.authorization;
    (
        grant.body.expose_secret().to_owned(),
        authorization.map(|value| value.expose_secret().to_owned()),
    )
}

#[test]
fn a_form_is_encoded_and_optional_parts_are_left_out() {
    let (body, authorization) = written(&endpoint());
    assert_eq!(
        body,
        "grant_type=refresh_token&refresh_token=r%2F1%2B%C3%BC&client_id=the%20client"
    );
    assert_eq!(authorization, None);
    let bare = TokenEndpoint {
        client_id: None,
        ..endpoint()
    };
    let (body, _) = written(&bare);
    assert!(body.ends_with("&refresh_token=r%2F1%2B%C3%BC"), "{body}");
}

#[test]
fn clients_name_themselves_in_the_body_or_in_the_header() {
    let secret = TokenEndpoint {
        client_secret: Some("s&t".into()),
        scopes: vec!["a".into(), "b:c".into()],
        ..endpoint()
    };
    let (body, _) = written(&secret);
    assert!(
        body.ends_with("&client_id=the%20client&client_secret=s%26t&scope=a%20b%3Ac"),
        "{body}"
    );
    let basic = TokenEndpoint {
        client_auth: ClientAuth::Basic,
        ..secret
    };
    let (body, authorization) = written(&basic);
    assert!(!body.contains("client"), "{body}");
    // the%20client:s%26t
    assert_eq!(
        authorization.as_deref(),
        Some("Basic dGhlJTIwY2xpZW50OnMlMjZ0")
    );
}

#[test]
fn json_has_the_same_names() {
    let json_body = TokenEndpoint {
        body: GrantBody::Json,
        ..endpoint()
    };
    let grant = request(&json_body, &"r/1".into());
    assert_eq!(grant.content_type, "application/json");
    let body: Value = serde_json::from_str(grant.body.expose_secret()).unwrap();
    assert_eq!(
        body,
        json!({"grant_type": "refresh_token", "refresh_token": "r/1", "client_id": "the client"})
    );
}

fn read(status: u16, body: &Value) -> Answer {
    let body = body.to_string();
    read_answer(status, body.as_bytes(), &"old".into(), at(1_000))
}

/// Access and refresh token, and the end.
fn granted(body: &Value) -> (String, String, Option<Millis>) {
    match read(200, body) {
        Answer::Granted { tokens, expires_at } => (
            tokens.access.expose_secret().to_owned(),
            tokens.refresh.expose_secret().to_owned(),
            expires_at,
        ),
        other @ (Answer::Refused { .. } | Answer::Failed { .. }) => panic!("{other:?}"),
    }
}

#[test]
fn new_tokens_are_read_and_an_old_refresh_token_stays_good() {
    let of = |value: Value| granted(&value);
    let end = Some(at(3_601_000));
    let both = json!({"access_token": "a", "refresh_token": "r", "expires_in": 3600});
    assert_eq!(of(both), ("a".into(), "r".into(), end));
    for rest in [
        json!({"expires_in": "3600"}),
        json!({"expires_in": 3600.0, "refresh_token": null}),
        json!({"expires_in": " 3600 ", "refresh_token": ""}),
    ] {
        let mut body = json!({"access_token": "a"});
        body.as_object_mut()
            .unwrap()
            .extend(rest.as_object().unwrap().clone());
        assert_eq!(of(body), ("a".into(), "old".into(), end), "{rest}");
    }
    for life in [json!(0), json!(-5), json!("soon"), json!(true), json!(null)] {
        let body = json!({"access_token": "a", "expires_in": life});
        assert_eq!(of(body).2, None, "{life}");
    }
    let ages = json!({"access_token": "a", "expires_in": 1e300});
    assert_eq!(of(ages).2, Some(at(10_413_792_001_000)));
}

fn jwt(claims: &Value) -> String {
    let claims = URL_SAFE_NO_PAD.encode(claims.to_string());
    format!("eyJhbGciOiJub25lIn0.{claims}.c2ln")
}

#[test]
fn a_token_that_tells_its_own_end_is_believed() {
    let token = jwt(&json!({"exp": 1_790_856_000, "sub": "somebody"}));
    let end = Some(at(1_790_856_000_000));
    assert_eq!(told_expiry(&token.clone().into()), end);
    assert_eq!(granted(&json!({"access_token": token})).2, end);
    for dull in ["a.b.c", "a", "", "..", "a.e30.c", "a.eyJleHAiOiJ4In0.c"] {
        assert_eq!(told_expiry(&SecretString::from(dull)), None, "{dull}");
    }
}

#[test]
fn refusals_of_the_refresh_token_are_told_from_other_trouble() {
    let refusals = [
        (400, json!({"error": "invalid_grant"})),
        (
            401,
            json!({"error": {"code": "refresh_token_reused", "message": "m"}}),
        ),
        (
            401,
            json!({"error": {"type": "invalid_grant", "message": "m"}}),
        ),
        (403, json!({"code": "refresh_token_expired"})),
        (
            200,
            json!({"error": "bad_refresh_token", "error_description": "d"}),
        ),
    ];
    for (status, body) in refusals {
        let read = read(status, &body);
        assert!(matches!(read, Answer::Refused { .. }), "{body}: {read:?}");
    }
    let trouble = [
        (503, json!({"error": "invalid_grant"}), "status_503"),
        (400, json!({"error": "invalid_client"}), "invalid_client"),
        (400, json!({"error": "invalid_grant_of_ours"}), "status_400"),
        (
            400,
            json!({"error_description": "invalid_grant"}),
            "status_400",
        ),
        (401, json!(null), "status_401"),
        (429, json!({}), "status_429"),
        (302, json!({"access_token": "a"}), "status_302"),
        (200, json!({}), "malformed_answer"),
        (200, json!([]), "malformed_answer"),
        (200, json!({"access_token": ""}), "malformed_answer"),
        (200, json!({"access_token": "a b"}), "malformed_answer"),
        (200, json!({"access_token": "a\nb"}), "malformed_answer"),
        (200, json!({"access_token": 7}), "malformed_answer"),
        (
            200,
            json!({"access_token": "a", "refresh_token": 7}),
            "malformed_answer",
        ),
        (
            200,
            json!({"access_token": "a".repeat(70_000)}),
            "malformed_answer",
        ),
    ];
    for (status, body, word) in trouble {
        match read(status, &body) {
            Answer::Failed { code } => assert_eq!(code, word, "{body}"),
            other @ (Answer::Granted { .. } | Answer::Refused { .. }) => {
                panic!("{body}: {other:?}")
            }
        }
    }
}

#[test]
fn credentials_are_told_apart_by_both_tokens_and_the_connection() {
    let of = |connection: &str, access: &str, refresh: &str| {
        mark(&connection.into(), &super::tokens(access, refresh))
    };
    let one = of("a", "x", "y");
    assert_eq!(of("a", "x", "y"), one);
    for other in [of("b", "x", "y"), of("a", "z", "y"), of("a", "x", "z")] {
        assert_ne!(other, one);
    }
}

proptest! {
    /// Any answer is read, and what is shown of it is of our own words.
    #[test]
    fn any_answer_is_read(status in 100_u16..600, body: Vec<u8>) {
        match read_answer(status, &body, &"old".into(), at(0)) {
            Answer::Granted { .. } => prop_assert!((200..300).contains(&status)),
            Answer::Refused { code } => prop_assert!(status < 500 && !code.is_empty()),
            Answer::Failed { code } => prop_assert!(code.len() < 40),
        }
    }

    #[test]
    fn words_of_an_answer_are_not_shown(word in "[a-z]{3,12}_secret", status in 400_u16..600) {
        let body = json!({"error": word, "message": word, "code": word});
        let shown = format!("{:?}", read(status, &body));
        prop_assert!(!shown.contains("secret"), "{}", shown);
    }
}
