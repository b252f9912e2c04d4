//! `defaultHeaders` of a provider.

use std::collections::BTreeMap;

use super::super::super::file;
use super::super::super::problem::{Path, shorten};
use super::{Context, Provider};

/// Headers that the router itself sets, or must not pass on.
const OWN_HEADERS: [&str; 14] = [
    "authorization",
    "x-api-key",
    "api-key",
    "x-goog-api-key",
    "cookie",
    "host",
    "content-length",
    "content-type",
    "transfer-encoding",
    "connection",
    "keep-alive",
    "upgrade",
    "te",
    "trailer",
];

/// Those of `base` with those of the file over them, names in lower case.
pub(super) fn headers(
    file: &file::Provider,
    base: Option<&Provider>,
    path: &Path,
    context: &mut Context<'_, '_>,
) -> Vec<(String, String)> {
    let path = path.key("defaultHeaders");
    let mut all: BTreeMap<String, String> = base
        .map_or(&[][..], |base| &base.default_headers)
        .iter()
        .cloned()
        .collect();
    for (name, value) in file.default_headers.iter().flatten() {
        let lower = name.to_ascii_lowercase();
        let plain = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
        let fault = if name.is_empty() || !name.chars().all(plain) {
            Some(format!("`{}` is not the name of a header", shorten(name)))
        } else if OWN_HEADERS.contains(&lower.as_str()) || lower.starts_with("x-omniroute-") {
            Some("the router sets this header itself".to_owned())
        } else if !value.chars().all(|c| c == '\t' || (' '..='~').contains(&c)) {
            Some("a header's value is printable ASCII".to_owned())
        } else {
            None
        };
        if let Some(fault) = fault {
            context.report.problem(&path.key(name), fault);
        }
        all.insert(lower, value.clone());
    }
    all.into_iter().collect()
}
