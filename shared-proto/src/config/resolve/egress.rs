//! `settings.egress`, over its variable, over the built-in numbers.

use std::collections::{BTreeMap, BTreeSet};

use super::super::file;
use super::super::problem::{Path, shorten};
use super::super::{EgressRules, Provider};
use super::{Context, url};
use crate::id::ProviderId;

/// Names the providers in the environment.
const VARIABLE: &str = "OMNIROUTE_EGRESS_IP_LOCK_PROVIDERS";

/// Values of the variable that name nobody.
const NOBODY: [&str; 4] = ["none", "off", "false", "0"];

/// Resolves the section.
pub(super) fn resolve(given: file::Egress, context: &mut Context<'_, '_>) -> EgressRules {
    let built_in = EgressRules::default();
    let path = Path::of("settings").key("egress").key("echoUrl");
    let echo_url = given.echo_url.map(|text| text.trim().to_owned());
    let echo_url = echo_url.filter(|text| url::check_endpoint(text, &path, context));
    let listed = given.lock_providers.map(|names| {
        let names = names.iter();
        names.map(|name| name.trim().to_lowercase()).collect()
    });
    EgressRules {
        echo_url: echo_url.unwrap_or(built_in.echo_url),
        cache_ms: given.cache_ms.unwrap_or(built_in.cache_ms),
        timeout_ms: given.timeout_ms.unwrap_or(built_in.timeout_ms),
        max_age_ms: given.observation_max_age_ms.unwrap_or(built_in.max_age_ms),
        lock_providers: listed
            .or_else(|| context.variable(VARIABLE).map(|text| of_variable(&text))),
    }
}

fn of_variable(text: &str) -> BTreeSet<String> {
    let text = text.trim().to_lowercase();
    if NOBODY.contains(&text.as_str()) {
        return BTreeSet::new();
    }
    let names = text.split(',').map(str::trim);
    names
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

/// Warns of names that are no provider's.
pub(super) fn check(
    rules: &EgressRules,
    providers: &BTreeMap<ProviderId, Provider>,
    context: &mut Context<'_, '_>,
) {
    let path = Path::of("settings").key("egress").key("lockProviders");
    for name in rules.lock_providers.iter().flatten() {
        let is_known = providers
            .values()
            .any(|provider| provider.id.as_str().eq_ignore_ascii_case(name));
        if !is_known {
            let message = format!("`{}` is no provider", shorten(name));
            let known = providers.keys().map(ProviderId::as_str);
            context.report.warn_unknown(&path, message, name, known);
        }
    }
}
