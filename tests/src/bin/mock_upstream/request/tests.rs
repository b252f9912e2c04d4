//! The head of a request.

use super::Head;

const HEAD: &[u8] = b"POST /v1/x HTTP/1.1\r\nHost: h\r\nCONTENT-length: 12\r\n\r\n";

#[test]
fn a_head_is_incomplete_until_its_last_byte() {
    for end in 0..HEAD.len() {
        assert_eq!(Head::parse(&HEAD[..end]).unwrap(), None, "at byte {end}");
    }
    let head = Head::parse(HEAD).unwrap().unwrap();
    assert_eq!((head.bytes, head.body_bytes), (HEAD.len(), 12));
}

#[test]
fn a_body_without_a_length_is_refused() {
    let chunked = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n";
    assert!(Head::parse(chunked).is_err());
    let nonsense = b"POST / HTTP/1.1\r\ncontent-length: twelve\r\n\r\n";
    assert!(Head::parse(nonsense).is_err());
}
