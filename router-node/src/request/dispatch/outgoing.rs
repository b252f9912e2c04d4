//! What goes on the wire: the client's own body and headers, our credential.

use http::header::{ACCEPT_ENCODING, CONTENT_TYPE, HeaderValue};
use http::{Method, Request};
use shared_proto::protocol::Protocol;

use super::{Call, Shown};
use crate::request::pick::Candidate;

/// The protocol's version when the client names none.
const ANTHROPIC_VERSION: &str = "2023-06-01";

impl Call<'_> {
    /// `None` for a provider without an address for the protocol, which
    /// resolving has already refused.
    pub(super) fn request(
        &self,
        candidate: &Candidate,
        shown: [Shown<'_>; 2],
    ) -> Option<Request<crate::upstream::Body>> {
        let slot = &candidate.slot;
        let (method, uri) = if self.facts.listing {
            (Method::GET, slot.models_url(self.protocol)?)
        } else {
            (Method::POST, slot.url(self.protocol)?.clone())
        };
        let mut request = Request::new(self.facts.body_for(&candidate.model));
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        let headers = request.headers_mut();
        *headers = self.headers.clone();
        headers
            .entry(CONTENT_TYPE)
            .or_insert(HeaderValue::from_static("application/json"));
        if self.protocol == Protocol::Messages {
            headers
                .entry("anthropic-version")
                .or_insert(HeaderValue::from_static(ANTHROPIC_VERSION));
        }
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        for (name, value) in &slot.default_headers {
            headers.entry(name).or_insert_with(|| value.clone());
        }
        for (name, value) in shown.into_iter().flatten() {
            headers.insert(name, value.clone());
        }
        Some(request)
    }
}
