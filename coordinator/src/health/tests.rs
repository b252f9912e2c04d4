//! What an answer says, and what a question sends.

use super::{Question, judge};

#[test]
fn only_200_is_well() {
    let answer = b"HTTP/1.0 200 OK\r\ncontent-length: 3\r\n\r\nyes";
    assert_eq!(judge(answer), Ok("yes".to_owned()));
    for (answer, told) in [
        (
            &b"HTTP/1.1 503 Service Unavailable\r\n\r\ndraining"[..],
            "status 503: draining",
        ),
        (b"HTTP/1.1 2000\r\n\r\n", "status 2000: "),
        (b"SSH-2.0-x 200\r\n\r\n", "what answers does not speak HTTP"),
        (b"", "what answers does not speak HTTP"),
        (b"HTTP/1.1", "what answers does not speak HTTP"),
        (b"\xff\xfe\r\n\r\n", "what answers does not speak HTTP"),
    ] {
        assert_eq!(judge(answer), Err(told.to_owned()));
    }
}

#[test]
fn no_more_than_a_little_of_an_answer_is_shown() {
    let answer = format!("HTTP/1.1 200 OK\r\n\r\n{}", "\u{e9}".repeat(2000));
    assert_eq!(judge(answer.as_bytes()), Ok("\u{e9}".repeat(512)));
}

#[test]
fn a_key_is_one_header_whatever_is_in_it() {
    let asked = Question::completion("m", Some("k\r\nX-Evil: 1\n"));
    assert!(
        asked
            .head
            .contains("\r\nAuthorization: Bearer kX-Evil: 1\r\n")
    );
    assert!(
        !Question::completion("m", None)
            .head
            .contains("Authorization")
    );
}
