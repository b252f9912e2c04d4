//! Leaving a connection alone before its quota is spent, where an operator wants it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Share, Window, Windows};
use crate::clock::Millis;
use crate::config::{Provider, Settings};

/// The rule that an error names which no upstream told.
pub const RULE: &str = "quota-preflight";

/// How much of a provider's windows has to be left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Whether anything is left alone at all.
    pub enabled: bool,
    /// Percentage left that counts as used up, where a window has none of its own.
    default_percent: u8,
    /// Percentage left that is worth a line in the log.
    warn_percent: u8,
    /// Percentage left that counts as used up, by window.
    windows: BTreeMap<String, u8>,
}

impl Policy {
    /// That of `provider`, by its name or by that of its entry in the catalogue.
    pub fn of(settings: &Settings, provider: &Provider) -> Self {
        let rules = &settings.quota_preflight;
        let by_provider = &rules.provider_window_defaults;
        let own = by_provider.get(provider.id.as_str());
        let own = own.or_else(|| by_provider.get(provider.canonical.as_str()));
        Self {
            enabled: rules.enabled,
            default_percent: rules.default_threshold_percent,
            warn_percent: rules.warn_threshold_percent,
            windows: own.cloned().unwrap_or_default(),
        }
    }

    /// A window of which no more than this is left counts as used up.
    pub fn cutoff(&self, window: &str) -> Share {
        let percent = self.windows.get(window);
        Share::of_whole(percent.copied().unwrap_or(self.default_percent))
    }

    /// A window of which no more than this is left is worth a line in the log;
    /// `None` where nobody wants to know.
    pub fn warning(&self) -> Option<Share> {
        self.enabled.then(|| Share::of_whole(self.warn_percent))
    }

    /// Whether enough of the window is left.
    pub fn has_headroom(&self, window: &str, used: Share) -> bool {
        used.rest() > self.cutoff(window)
    }

    /// Of the windows that count the models with `key`, were told of after
    /// `heard_after` and run at `now`, the one that is used up and ends last.
    /// `None` where nothing is left alone.
    pub fn spent<'w>(
        &self,
        windows: &'w Windows,
        key: &str,
        heard_after: Option<Millis>,
        now: Millis,
    ) -> Option<(&'w Window, Origin)> {
        if !self.enabled {
            return None;
        }
        let counted = windows.all().iter().filter(|window| {
            let news = heard_after.is_none_or(|at| window.observed_at > at);
            news && window.counts(key)
        });
        let spent = counted.filter_map(|window| {
            let end = window.ends_after(now)?;
            let used = window.used?;
            (!self.has_headroom(&window.name, used)).then_some((window, end))
        });
        let (window, resets_at) = spent.max_by_key(|(_, end)| *end)?;
        let origin = Origin {
            window: window.name.to_string(),
            window_ms: window.window_ms,
            resets_at,
            observed_at: window.observed_at,
        };
        Some((window, origin))
    }
}

/// Why a rest was begun before anybody refused. Part of the record of the rest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The window's name.
    pub window: String,
    /// Its length, ms, where it was known.
    pub window_ms: Option<u64>,
    /// When it was said to begin anew, which is the end of the rest.
    pub resets_at: Millis,
    /// When that was told.
    pub observed_at: Millis,
}

impl Origin {
    /// What an operator is told.
    pub fn message(&self) -> String {
        let window: String = self.window.chars().take(64).collect();
        format!("the quota's window `{window}` is all but used up; nothing was sent")
    }
}
