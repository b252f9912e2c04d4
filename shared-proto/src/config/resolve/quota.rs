//! `settings.resilience.quotaPreflight`, and where live usage is asked for.

use std::collections::BTreeMap;

use super::super::problem::Path;
use super::super::{Provider, QuotaPreflight, file};
use super::{Context, gates, url};

const VARIABLE: &str = "QUOTA_PREFLIGHT_CUTOFF_ENABLED";

/// The file's word goes before the variable's. What is worth a warning is more
/// than what counts as used up.
pub(super) fn preflight(
    given: Option<file::QuotaPreflight>,
    context: &mut Context<'_, '_>,
) -> QuotaPreflight {
    let built_in = QuotaPreflight::default();
    let switched_on = gates::switch(VARIABLE, context);
    let given = given.unwrap_or_default();
    let default_threshold_percent = given
        .default_threshold_percent
        .map_or(built_in.default_threshold_percent, percent);
    let wanted = given
        .warn_threshold_percent
        .map_or(built_in.warn_threshold_percent, percent);
    let warn_threshold_percent = wanted.max(default_threshold_percent.saturating_add(1));
    if given.warn_threshold_percent.is_some() && wanted != warn_threshold_percent {
        let message = format!(
            "{wanted} is not above defaultThresholdPercent {default_threshold_percent}; {warn_threshold_percent} is used"
        );
        let path = Path::of("settings").key("resilience").key("quotaPreflight");
        let path = path.key("warnThresholdPercent");
        context.report.warn(&path, message);
    }
    let windows = given.provider_window_defaults.unwrap_or_default();
    let percents = |of: BTreeMap<String, file::Percent>| {
        let of = of.into_iter();
        of.map(|(window, file::Percent(number))| (window, percent(number)))
            .collect()
    };
    QuotaPreflight {
        enabled: given.enabled.or(switched_on).unwrap_or(built_in.enabled),
        default_threshold_percent,
        warn_threshold_percent,
        provider_window_defaults: windows
            .into_iter()
            .map(|(provider, of)| (provider, percents(of)))
            .collect(),
    }
}

/// The schema's bounds are those of a percentage.
fn percent(number: u64) -> u8 {
    u8::try_from(number).unwrap_or(100).min(100)
}

/// Where live usage is asked for. What the catalogue knows is the maker's own
/// address: an account that is called elsewhere is not shown there.
pub(super) fn usage_url(
    file: &file::Provider,
    base: Option<&Provider>,
    path: &Path,
    context: &mut Context<'_, '_>,
) -> Option<String> {
    let Some(text) = &file.usage_url else {
        let base = base.filter(|_| file.base_url.is_none());
        return base.and_then(|base| base.usage_url.clone());
    };
    let usable = text.is_empty() || url::check_endpoint(text, &path.key("usageUrl"), context);
    Some(text.clone()).filter(|text| usable && !text.is_empty())
}
