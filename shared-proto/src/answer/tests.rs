//! Whole answers, and the way between streams and them.

mod convert;
mod judge;

use super::*;

fn verdict(protocol: Protocol, body: &str) -> Result<AnswerFacts, StreamFailure> {
    judge(
        protocol,
        ContentType::Json,
        &Bytes::copy_from_slice(body.as_bytes()),
        None,
    )
}

fn kind(protocol: Protocol, body: &str) -> &'static str {
    verdict(protocol, body).map_or_else(|failure| failure.kind.as_str(), |_| "ok")
}
