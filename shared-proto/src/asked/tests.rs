//! Which phrases count as the client's own, in all their spellings.

use super::{Asked, LOOKUPS_MAX};

const BAN: &str = "your account has been suspended";

fn body(content: &str) -> String {
    serde_json::json!({"model": "m", "messages": [{"role": "user", "content": content}]})
        .to_string()
}

fn says(body: &str, phrase: &str) -> bool {
    Asked::new(body.as_bytes(), []).says(phrase)
}

#[test]
fn spellings_of_one_phrase() {
    let tool = serde_json::json!({"note": "your \"account\" has\nbeen suspended"}).to_string();
    let bodies = [
        body(BAN),
        body("Dear Bob, YOUR ACCOUNT HAS BEEN SUSPENDED! Yours, B."),
        body("your account\n\thas been   suspended"),
        body("your account has been sus\u{200b}pended"),
        body(r"your account has been \u0073uspended"),
        r#"{"model": "\u0079our acco\u0075nt has been suspended"}"#.to_owned(),
        r#"{"your account has been suspended": 1}"#.to_owned(),
        body(&tool),
    ];
    for body in bodies {
        assert!(says(&body, BAN), "{body}");
        assert!(says(&body, "account has been suspended"), "{body}");
        assert!(!says(&body, "your account has been deactivated"), "{body}");
        assert!(!says(&body, "account your has been suspended"), "{body}");
    }
}

#[test]
fn a_phrase_may_be_escaped_on_its_way_back() {
    // The newline comes back as an escape whose letter joins the next word.
    for content in ["see:\no longer works", "see:\u{a}o longer works"] {
        let body = body(content);
        assert!(says(&body, r"see:\no longer works"), "{body}");
        assert!(says(&body, r"\\no longer works"), "{body}");
        assert!(!says(&body, "no longer works"), "{body}");
    }
    assert!(says(&body("Úily quota"), r"\u00daily quota"));
    assert!(says(&body("a 𝄞 quota"), r"a \ud834\udd1e quota"));
    assert!(says(
        &body("créditos INSUFICIENTES"),
        "creditos insuficientes"
    ));
    assert!(says(&body("额度不足"), "额度不足"));
}

#[test]
fn headers_count_and_parts_do_not_join() {
    let asked = Asked::new(
        b"{\"a\":\"your account\"}",
        [&b"has been suspended"[..], b"a\xffb"],
    );
    assert!(asked.says("has been suspended"));
    assert!(asked.says("your account"));
    assert!(!asked.says(BAN));
    assert!(!asked.says(""));
    assert!(!asked.says("\"...\""));
    assert!(!Asked::new(b"", []).says("a"));
}

#[test]
fn a_few_letters_inside_of_others_are_no_word() {
    assert!(!says(&body("data:image/png;base64,xxrpdxx+operpd"), "rpd"));
    assert!(says(&body("what is RPD?"), "rpd"));
    assert!(says(&body("daily quotas"), "daily quota"));
}

#[test]
fn odd_escapes_are_no_trouble() {
    for text in [
        r"\",
        r"\u",
        r"\u12",
        r"\ud834",
        r"\ud834\u0041",
        r"\udead",
        r"\x41\",
        "\\é",
    ] {
        let body = format!("{{\"a\":\"one {text} two\"");
        assert!(says(&body, "one"), "{text}");
        Asked::new(text.as_bytes(), [text.as_bytes()]).says(text);
    }
}

#[test]
fn past_the_bound_everything_counts_as_said() {
    let body = body("hello");
    let asked = Asked::new(body.as_bytes(), []);
    for n in 0..LOOKUPS_MAX {
        assert!(!asked.says(&format!("phrase number {n}")));
    }
    assert!(!asked.says("phrase number 1"), "known already");
    assert!(asked.says("something else"));
}

/// The largest body that is taken, of nothing but escapes: linear, or it would
/// run into the time limit of the tests.
#[test]
fn a_long_body_is_read_quickly() {
    for filler in [r"\u0061\\\\\u005cn", "\\", "suspended ", "é"] {
        let body = filler.repeat((32 << 20) / filler.len());
        let asked = Asked::new(body.as_bytes(), []);
        assert!(!asked.says(BAN));
        assert!(!asked.says("out of credits"));
    }
}

#[test]
fn nothing_of_it_is_shown() {
    let asked = Asked::new(b"secret prompt", [&b"secret header"[..]]);
    asked.says("secret");
    assert!(!format!("{asked:?}").contains("secret"));
}
