//! Failures that come without an answer to read, or with one that can't be used.

use crate::config::Reading;
use crate::failure::{Blame, Cooldown, ErrorType, Failure, Reason};

/// How a call failed below HTTP, or at one of our own timers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransportFailure {
    /// Refused, no such host, no route, or no TLS.
    ConnectFailed,
    /// No connection in time.
    ConnectTimeout,
    /// No response headers in time.
    HeadersTimeout,
    /// No content in time.
    FirstContentTimeout,
    /// Not a byte for too long.
    ByteIdle,
    /// Bytes, but no data for too long.
    ProgressIdle,
    /// The connection was cut.
    Reset,
    /// An answer came whose head is larger than is taken, or has more headers.
    HeadTooLarge,
    /// An answer came that is not HTTP.
    NotHttp,
    /// The whole answer took too long.
    TotalTimeout,
    /// The connection's proxy can't be reached.
    ProxyUnreachable,
    /// The connection's proxy asks for a user and password, or for others.
    ProxyLogin,
    /// The connection's proxy does not lead to the upstream.
    ProxyRefused,
    /// What should be the connection's proxy does not speak like one.
    ProxyGarbage,
}

impl TransportFailure {
    /// Every one of them.
    pub const ALL: [Self; 14] = [
        Self::ConnectFailed,
        Self::ConnectTimeout,
        Self::HeadersTimeout,
        Self::FirstContentTimeout,
        Self::ByteIdle,
        Self::ProgressIdle,
        Self::Reset,
        Self::HeadTooLarge,
        Self::NotHttp,
        Self::TotalTimeout,
        Self::ProxyUnreachable,
        Self::ProxyLogin,
        Self::ProxyRefused,
        Self::ProxyGarbage,
    ];

    /// The word used in traces, logs and metric labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ConnectFailed => "connect_failed",
            Self::ConnectTimeout => "connect_timeout",
            Self::HeadersTimeout => "headers_timeout",
            Self::FirstContentTimeout => "first_content_timeout",
            Self::ByteIdle => "byte_idle",
            Self::ProgressIdle => "progress_idle",
            Self::Reset => "reset",
            Self::HeadTooLarge => "head_too_large",
            Self::NotHttp => "not_http",
            Self::TotalTimeout => "total_timeout",
            Self::ProxyUnreachable => "proxy_unreachable",
            Self::ProxyLogin => "proxy_login",
            Self::ProxyRefused => "proxy_refused",
            Self::ProxyGarbage => "proxy_garbage",
        }
    }
}

/// How an answer that began well turned out to be none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BadAnswer {
    /// It ended without a sign that it was complete.
    Truncated,
    /// It ended inside the arguments of a tool call.
    CutToolCall,
    /// It was complete and held nothing.
    Empty,
    /// It was neither JSON nor events.
    Garbage,
    /// It was a web page.
    Html,
    /// One event or line was larger than we take.
    TooLarge,
    /// It said that it ended in an error, without saying which.
    FinishError,
}

impl BadAnswer {
    /// Every one of them.
    pub const ALL: [Self; 7] = [
        Self::Truncated,
        Self::CutToolCall,
        Self::Empty,
        Self::Garbage,
        Self::Html,
        Self::TooLarge,
        Self::FinishError,
    ];

    /// The word used in traces, logs and metric labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Truncated => "truncated",
            Self::CutToolCall => "cut_tool_call",
            Self::Empty => "empty",
            Self::Garbage => "garbage",
            Self::Html => "html",
            Self::TooLarge => "too_large",
            Self::FinishError => "finish_error",
        }
    }
}

/// What a failure below HTTP means. The account is left alone for a step of
/// its ladder; the provider's breaker counts what an unreachable or broken
/// or mute provider does, and not that we were tired of a slow answer or that
/// a proxy is set up wrongly.
pub fn transport_failure(kind: TransportFailure) -> Failure {
    use TransportFailure as T;
    let (status, counts, message) = match kind {
        T::ConnectFailed => (502, true, "the upstream could not be reached"),
        T::ConnectTimeout => (504, true, "the upstream could not be reached in time"),
        T::HeadersTimeout => (504, true, "the upstream did not answer in time"),
        T::FirstContentTimeout => (504, false, "the upstream sent no content in time"),
        T::ByteIdle => (504, false, "the upstream went silent"),
        T::ProgressIdle => (504, false, "the upstream stopped making progress"),
        T::Reset => (502, true, "the upstream cut the connection"),
        T::HeadTooLarge => (
            502,
            true,
            "the upstream's answer has more or larger headers than are taken",
        ),
        T::NotHttp => (502, true, "the upstream answered with what is not HTTP"),
        T::TotalTimeout => (504, false, "the upstream took too long"),
        T::ProxyUnreachable => (
            502,
            true,
            "the connection's proxy (proxyUrl) could not be reached",
        ),
        T::ProxyLogin => (
            502,
            false,
            "the connection's proxy (proxyUrl) asks for a user and password, or for others",
        ),
        T::ProxyRefused => (
            502,
            false,
            "the connection's proxy (proxyUrl) did not lead to the upstream",
        ),
        T::ProxyGarbage => (
            502,
            false,
            "the connection's proxy (proxyUrl) did not answer like a proxy of its kind",
        ),
    };
    broken((status, counts), Blame::Connection, kind.as_str(), message)
}

/// What an unusable answer means. One that is empty or ends too early in good
/// order says something about the model, the others about the account's way to
/// the provider.
///
/// Where the provider is known to answer a prompt that is too long with
/// nothing, an empty answer is charged to the request.
pub fn stream_failure(kind: BadAnswer, reading: Reading) -> Failure {
    use BadAnswer as B;
    let (blame, counts, message) = match kind {
        B::Truncated => (Blame::Model, true, "the upstream's answer was cut short"),
        B::CutToolCall => (
            Blame::Connection,
            true,
            "the upstream's answer ended inside a tool call",
        ),
        B::Empty => (Blame::Model, false, "the upstream's answer was empty"),
        B::Garbage => (
            Blame::Connection,
            true,
            "the upstream's answer could not be understood",
        ),
        B::Html => (
            Blame::Connection,
            true,
            "the upstream answered with an HTML page",
        ),
        B::TooLarge => (
            Blame::Connection,
            true,
            "the upstream sent a larger event than is taken",
        ),
        B::FinishError => (
            Blame::Model,
            false,
            "the upstream ended its answer with an error it did not name",
        ),
    };
    let mut failure = broken((502, counts), blame, kind.as_str(), message);
    if kind == B::Empty {
        failure.error_type = Some(ErrorType::EmptyContent);
        if reading.unsaid_overflow.empty_answer {
            failure.blame = Blame::Request;
            failure.reason = Reason::ModelCapacity;
            failure.error_type = Some(ErrorType::ContextOverflow);
            failure.cooldown = Cooldown::None;
        }
    }
    failure
}

fn broken(
    (status, counts_for_breaker): (u16, bool),
    blame: Blame,
    word: &str,
    message: &str,
) -> Failure {
    Failure {
        status,
        reason: Reason::ServerError,
        blame,
        error_type: Some(ErrorType::ServerError),
        fallback: true,
        terminal: None,
        cooldown: Cooldown::Ladder,
        hint: None,
        client_retry_after_ms: None,
        counts_for_breaker,
        rule: format!("upstream-{}", word.replace('_', "-")),
        restated: None,
        upstream_code: Some(word.to_owned()),
        message: message.to_owned(),
    }
}
