//! Spans read out of what a collector was sent as JSON.

use cluster_tests::upstream::Upstream;
use cluster_tests::wait::eventually;
use serde_json::{Value, json};

/// One span as it was sent.
#[derive(Clone, Debug)]
pub(crate) struct Span(pub(crate) Value);

impl Span {
    /// Panics unless a field has this value.
    pub(crate) fn expect(&self, field: &str, value: &Value) {
        assert_eq!(self.0[field], *value, "{field} of {}", self.0);
    }

    /// The value of an attribute, freed of its type.
    pub(crate) fn attribute(&self, name: &str) -> Option<Value> {
        let all = self.0["attributes"].as_array()?;
        let value = &all.iter().find(|one| one["key"] == name)?["value"];
        let (kind, value) = value.as_object()?.iter().next()?;
        // JSON's numbers can't hold every int64, so it travels as text.
        match (kind.as_str(), value.as_str()) {
            ("intValue", Some(text)) => Some(json!(text.parse::<i64>().unwrap())),
            (_, _) => Some(value.clone()),
        }
    }

    /// Panics unless an attribute has this value, or is absent.
    pub(crate) fn expect_attribute(&self, name: &str, value: Option<&Value>) {
        assert_eq!(self.attribute(name).as_ref(), value, "{name} of {}", self.0);
    }

    /// Whether its status is an error.
    pub(crate) fn is_error(&self) -> bool {
        self.0["status"]["code"] == 2
    }

    /// When it began, ns.
    pub(crate) fn starts(&self) -> u64 {
        self.time("startTimeUnixNano")
    }

    /// When it ended, ns.
    pub(crate) fn ends(&self) -> u64 {
        self.time("endTimeUnixNano")
    }

    fn time(&self, name: &str) -> u64 {
        let text = self.0[name].as_str().unwrap();
        text.parse().unwrap()
    }
}

/// Every span that the collector was sent, in the order in which they began.
pub(crate) fn collected(collector: &Upstream) -> Vec<Span> {
    let list = |value: &Value, name: &str| value[name].as_array().cloned().unwrap_or_default();
    let mut spans = Vec::new();
    for export in collector.requests() {
        for resource in list(&export.json(), "resourceSpans") {
            for scope in list(&resource, "scopeSpans") {
                spans.extend(list(&scope, "spans").into_iter().map(Span));
            }
        }
    }
    spans.sort_by_key(Span::starts);
    spans
}

/// Waits until there are `count` spans and returns them; panics on more.
pub(crate) async fn whole_trace(collector: &Upstream, count: usize) -> Vec<Span> {
    let spans = eventually("the spans are collected", || async {
        let spans = collected(collector);
        (spans.len() >= count).then_some(spans)
    })
    .await;
    assert_eq!(spans.len(), count, "{spans:?}");
    spans
}
