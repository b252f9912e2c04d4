//! What headers tell, what is remembered of it, and what follows.

mod headers;
mod memory;
mod properties;
mod usage;

use std::sync::Arc;

use super::{Share, Source, Window, Windows};
use crate::catalogue;
use crate::clock::Millis;
use crate::config::{ModelFamily, Settings};
use crate::hint::tests::T0;
use crate::lockout::quota_key;

/// 30 days, as `hintBounds` has it.
const BOUND_MS: u64 = 30 * 86_400_000;
const HOUR: u64 = 3_600_000;

fn families(provider: &str) -> Vec<ModelFamily> {
    catalogue::entry(provider)
        .unwrap()
        .provider
        .model_families
        .clone()
}

/// The windows in an answer of `provider` to a request for `model`.
fn told(provider: &str, model: &str, headers: &[(&str, &str)]) -> Vec<Window> {
    let provider = &catalogue::entry(provider).unwrap().provider;
    let families = families(provider.id.as_str());
    let source = Source {
        key: &quota_key(model, &families),
        families: &families,
        per_model_quota: provider.per_model_quota,
        bound_ms: BOUND_MS,
    };
    super::read(headers, &source, T0)
}

fn window(name: &str, used: Option<f64>, resets_in: Option<u64>) -> Window {
    Window {
        name: Arc::from(name),
        scope: None,
        used: used.map(|percent| Share::of_percent(percent).unwrap()),
        resets_at: resets_in.map(|ms| T0.plus(ms)),
        window_ms: None,
        observed_at: T0,
        warned: false,
    }
}

fn at(window: Window, observed_at: Millis) -> Window {
    Window {
        observed_at,
        ..window
    }
}

fn known(windows: &[Window]) -> Windows {
    Windows::default().with(windows, None)
}

/// The policy of a provider where these settings hold.
fn policy(
    provider: &str,
    set: impl FnOnce(&mut crate::config::QuotaPreflight),
) -> super::preflight::Policy {
    let mut settings = Settings::default();
    settings.quota_preflight.enabled = true;
    set(&mut settings.quota_preflight);
    super::preflight::Policy::of(&settings, &catalogue::entry(provider).unwrap().provider)
}
