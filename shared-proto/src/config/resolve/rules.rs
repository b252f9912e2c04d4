//! The operator's rules about upstream failures.

use std::collections::BTreeMap;

use super::super::file::{self, Marker};
use super::super::problem::Path;
use super::super::{DailyReset, ErrorRule, Provider, Reading};
use super::Context;
use crate::failure::{Reason, RuleScope};
use crate::restate::{self, RestateRule};

/// Rules of one kind, over all providers.
const RULES_MAX: usize = 50;
/// Characters of a provider's name.
const PROVIDER_MAX: usize = 100;
/// Statuses or texts of one restatement.
const MARKERS_MAX: usize = 20;

/// What refusals mean, by provider.
pub(super) fn error_rules(
    given: Option<BTreeMap<String, Vec<file::ErrorRule>>>,
    context: &mut Context<'_, '_>,
) -> BTreeMap<String, Vec<ErrorRule>> {
    let path = Path::of("settings").key("providerErrorRules");
    let given = given.unwrap_or_default();
    let count: usize = given.values().map(Vec::len).sum();
    if count > RULES_MAX {
        let message = format!("{count} rules; at most {RULES_MAX} are taken");
        context.report.problem(&path, message);
    }
    let mut rules: BTreeMap<String, Vec<ErrorRule>> = BTreeMap::new();
    for (provider, list) in given {
        let name = provider.trim();
        if name.is_empty() || name.chars().count() > PROVIDER_MAX {
            let message = format!("a provider's name has 1 to {PROVIDER_MAX} characters");
            context.report.problem(&path.key(&provider), message);
            continue;
        }
        let of_it = rules.entry(name.to_lowercase()).or_default();
        of_it.extend(list.into_iter().filter_map(error_rule));
    }
    rules
}

/// `None` where something is missing, which was told already.
fn error_rule(given: file::ErrorRule) -> Option<ErrorRule> {
    Some(ErrorRule {
        status: u16::try_from(given.status?).ok()?,
        text: given.r#match?.to_lowercase(),
        scope: RuleScope::from(given.scope?),
        reason: given.reason.map_or(Reason::QuotaExhausted, Reason::from),
        cooldown_ms: given.cooldown_ms,
    })
}

/// How a provider's refusals are read: as the catalogue has it, unless the file says otherwise.
pub(super) fn reading(file: &file::Provider, base: Option<&Provider>) -> Reading {
    let before = base.map(|base| base.reading).unwrap_or_default();
    Reading {
        honours_rule_scope: file.honours_rule_scope.unwrap_or(before.honours_rule_scope),
        full_text_rules: file.full_text_rules.unwrap_or(before.full_text_rules),
        unsaid_overflow: before.unsaid_overflow,
    }
}

/// When a day's quota begins anew; `None` where nothing is said.
pub(super) fn daily_reset(
    zone: Option<&str>,
    hour: Option<u64>,
    (path, context): (&Path, &mut Context<'_, '_>),
) -> Option<DailyReset> {
    if zone.is_none() && hour.is_none() {
        return None;
    }
    let reset = DailyReset::named(zone.unwrap_or("UTC"), hour.unwrap_or(0));
    if reset.is_none() {
        let message = "is no zone of the time zone database, such as `Europe/Warsaw`";
        let path = path.key("dailyQuotaResetTimezone");
        context.report.problem(&path, message);
    }
    reset
}

/// Rules that put statuses right, with the built-in ones behind.
pub(super) fn restate_rules(
    given: Option<Vec<file::RestatementRule>>,
    context: &mut Context<'_, '_>,
) -> Vec<RestateRule> {
    let path = Path::of("settings").key("statusRestatementRules");
    let given = given.unwrap_or_default();
    if given.len() > RULES_MAX {
        let message = format!("{} rules; at most {RULES_MAX} are taken", given.len());
        context.report.problem(&path, message);
    }
    let mut rules = Vec::new();
    for (at, rule) in given.into_iter().enumerate() {
        rules.extend(restate_rule(rule, at, &path.index(at), context));
    }
    rules.extend(restate::built_in());
    rules
}

fn restate_rule(
    given: file::RestatementRule,
    at: usize,
    path: &Path,
    context: &mut Context<'_, '_>,
) -> Option<RestateRule> {
    let provider = given.provider?.trim().to_owned();
    let from = given.from_statuses?;
    let markers = given.text_markers?;
    let excludes = given.exclude_markers.unwrap_or_default();
    for (key, count, least) in [
        ("fromStatuses", from.len(), 1),
        ("textMarkers", markers.len(), 1),
        ("excludeMarkers", excludes.len(), 0),
    ] {
        if !(least..=MARKERS_MAX).contains(&count) {
            let message = format!("takes {least} to {MARKERS_MAX} entries");
            context.report.problem(&path.key(key), message);
        }
    }
    let lower = |markers: Vec<Marker>| {
        let texts = markers.into_iter().map(|Marker(text)| text.to_lowercase());
        texts.collect()
    };
    let status = |status: file::Status| u16::try_from(status.0).ok();
    Some(RestateRule {
        id: given
            .id
            .unwrap_or_else(|| format!("operator-{provider}-{at}")),
        provider,
        from: from.into_iter().filter_map(status).collect(),
        to: status(given.to_status?)?,
        markers: lower(markers),
        excludes: lower(excludes),
        default_retry_after_ms: given.default_retry_after_ms,
    })
}
