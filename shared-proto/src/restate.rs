//! Statuses that don't mean what they say.
//!
//! Some providers refuse with the wrong status: a used-up quota as a 403, say,
//! which would condemn the account. Rules, as data, put the status right once,
//! before anything else looks at the failure; operators may add their own.
//!
//! Markers have to be peculiar to the provider and must not speak of credits:
//! such a text decides for itself and would turn a renewing quota into an
//! account that is out for good.

/// When to read a status as another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestateRule {
    /// Its name in traces.
    pub id: String,
    /// The provider it is for, compared without case.
    pub provider: String,
    /// The statuses it applies to.
    pub from: Vec<u16>,
    /// What they mean.
    pub to: u16,
    /// Texts of which one has to be there, without case.
    pub markers: Vec<String>,
    /// Texts of which none may be there, without case.
    pub excludes: Vec<String>,
    /// What the client is told to wait when the upstream doesn't say, ms.
    pub default_retry_after_ms: Option<u64>,
}

/// A status put right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restated<'r> {
    /// What it means.
    pub status: u16,
    /// What the client is told to wait, ms: the upstream's word, else the rule's.
    pub retry_after_ms: Option<u64>,
    /// Id of the rule.
    pub rule: &'r str,
    /// What the upstream sent.
    pub from_status: u16,
}

/// The rules that come with the router. Operators' rules go before them.
pub fn built_in() -> Vec<RestateRule> {
    vec![RestateRule {
        id: "agentrouter-quota-misstatus".to_owned(),
        provider: "agentrouter".to_owned(),
        from: vec![403, 400],
        to: 429,
        markers: vec!["额度不足".to_owned()],
        excludes: vec!["无权访问".to_owned()],
        default_retry_after_ms: Some(60_000),
    }]
}

/// Puts a status right by the first rule that fits; `None` leaves it as it is.
///
/// `text` is everything the body says, lowercased. `retry_after_ms` is what the
/// upstream announced; 0 counts as nothing.
pub fn restate<'r>(
    rules: &'r [RestateRule],
    provider: &str,
    status: u16,
    text: &str,
    retry_after_ms: Option<u64>,
) -> Option<Restated<'r>> {
    let holds = |marker: &str| text.contains(marker);
    restate_heard(rules, (provider, status), holds, retry_after_ms)
}

/// The same, where `hears` tells whether a lowercase marker counts as there.
pub(crate) fn restate_heard<'r>(
    rules: &'r [RestateRule],
    (provider, status): (&str, u16),
    hears: impl Fn(&str) -> bool,
    retry_after_ms: Option<u64>,
) -> Option<Restated<'r>> {
    let says = |marker: &String| !marker.is_empty() && hears(&marker.to_lowercase());
    let rule = rules.iter().find(|rule| {
        rule.provider.eq_ignore_ascii_case(provider)
            && rule.from.contains(&status)
            && rule.markers.iter().any(says)
            && !rule.excludes.iter().any(says)
    })?;
    Some(Restated {
        status: rule.to,
        retry_after_ms: retry_after_ms
            .filter(|ms| *ms > 0)
            .or(rule.default_retry_after_ms),
        rule: &rule.id,
        from_status: status,
    })
}

#[cfg(test)]
mod tests;
