//! What an echo service answers.

use std::net::IpAddr;

/// Bytes of an answer that are read; an address needs a tenth of a line.
pub const MAX_ANSWER: usize = 4 * 1024;

/// The address in `{"ip": "..."}` or in a bare text, in its usual form. Total:
/// anything else is none, and so is an address that nobody can have.
pub fn read_answer(body: &[u8]) -> Option<IpAddr> {
    if body.len() > MAX_ANSWER {
        return None;
    }
    let text = std::str::from_utf8(body).ok()?.trim();
    let address: IpAddr = if text.starts_with('{') {
        let answer: serde_json::Value = serde_json::from_str(text).ok()?;
        answer.get("ip")?.as_str()?.trim().parse().ok()?
    } else {
        text.trim_matches('"').parse().ok()?
    };
    let address = address.to_canonical();
    let is_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    let is_nobody = address.is_unspecified() || address.is_multicast() || is_broadcast;
    (!is_nobody).then_some(address)
}
