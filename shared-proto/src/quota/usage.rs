//! The usage of a subscription, asked for live, and whether it ends a rest that
//! was begun because a window was all but used up.
//!
//! It does so only if the window that was the cause has begun anew (the same
//! name, the same length, a strictly later reset) and every window that is there
//! has room. In doubt the rest stays: it ends by its time anyway. Windows of single
//! features are not looked at; their models have rests of their own.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::preflight::{Origin, Policy};
use super::{Share, Window};
use crate::clock::Millis;

/// An answer older than this proves nothing, ms.
pub const FRESH_MS: u64 = 30_000;
/// A connection's usage is asked for at most this often, in the whole cluster, ms.
pub const EVERY_MS: u64 = 60_000;

/// The windows that count a plan's use, by their names in headers and in the answer.
const NORMAL: [(&str, &str); 2] = [
    ("primary", "primary_window"),
    ("secondary", "secondary_window"),
];
/// Seconds since the epoch beyond this are no time.
const LATEST_S: f64 = 1e11;
/// A longer window is none, s.
const LENGTH_MAX_S: f64 = 366.0 * 86_400.0;

/// A window of the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Live {
    name: &'static str,
    used: Share,
    window_ms: u64,
    resets_at: Millis,
}

/// What a live answer says, read whole or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// When it was asked for.
    observed_at: Millis,
    /// Whether requests are allowed and no limit is reached.
    open: bool,
    windows: Vec<Live>,
}

/// Whether usage can end a rest of this origin at all.
pub fn may_end(origin: &Origin) -> bool {
    origin.window_ms.is_some() && NORMAL.iter().any(|(name, _)| *name == origin.window)
}

impl Usage {
    /// Reads the answer to a question asked at `observed_at`. `None` if anything
    /// that decides is missing or is no finite number.
    pub fn read(body: &[u8], observed_at: Millis) -> Option<Self> {
        let whole: Value = serde_json::from_slice(body).ok()?;
        let limit = whole.get("rate_limit")?.as_object()?;
        let reached = limit.get("limit_reached")?.as_bool()?;
        let allowed = match limit.get("allowed") {
            None => true,
            Some(word) => word.as_bool()?,
        };
        let mut windows = Vec::new();
        for (name, field) in NORMAL {
            match limit.get(field) {
                None | Some(Value::Null) => {}
                Some(window) => windows.push(live(name, window.as_object()?)?),
            }
        }
        Some(Self {
            observed_at,
            open: allowed && !reached,
            windows,
        })
    }

    /// When it was asked for.
    pub const fn observed_at(&self) -> Millis {
        self.observed_at
    }

    /// Whether it ends at `now` the rest that was begun for `origin`.
    pub fn ends(&self, origin: &Origin, policy: &Policy, now: Millis) -> bool {
        let age_ms = now.since(self.observed_at);
        let fresh = age_ms <= FRESH_MS && self.observed_at >= origin.observed_at;
        let anew = self.windows.iter().any(|window| {
            window.name == origin.window
                && Some(window.window_ms) == origin.window_ms
                && window.resets_at > origin.resets_at
        });
        let roomy = |window: &Live| policy.has_headroom(window.name, window.used);
        fresh && self.open && anew && self.windows.iter().all(roomy)
    }

    /// What it says of the windows, which count the models with `scope`.
    pub fn windows(&self, scope: &str, bound_ms: u64) -> Vec<Window> {
        let at = self.observed_at;
        let windows = self.windows.iter().map(|window| Window {
            name: Arc::from(window.name),
            scope: Some(Arc::from(scope)),
            used: Some(window.used),
            resets_at: Some(window.resets_at.min(at.plus(bound_ms))).filter(|end| *end > at),
            window_ms: Some(window.window_ms),
            observed_at: at,
            warned: false,
        });
        windows.collect()
    }
}

fn live(name: &'static str, window: &Map<String, Value>) -> Option<Live> {
    let number = |field: &str| window.get(field)?.as_f64().filter(|n| n.is_finite());
    // It is not needed, but may not be nonsense either.
    let after = window.get("reset_after_seconds");
    if after.is_some_and(|after| after.as_f64().is_none()) {
        return None;
    }
    let length = number("limit_window_seconds").filter(|s| (1.0..=LENGTH_MAX_S).contains(s))?;
    let reset = number("reset_at").filter(|s| (0.0..=LATEST_S).contains(s))?;
    Some(Live {
        name,
        used: Share::of_percent(number("used_percent")?)?,
        window_ms: millis(length),
        resets_at: Millis::from_epoch_ms(millis(reset)),
    })
}

/// Seconds, of which the caller knows that they are neither negative nor absurd, in ms.
fn millis(seconds: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "both ends are checked, and the cast saturates"
    )]
    let ms = (seconds * 1_000.0).ceil() as u64;
    ms
}
