//! The numbers a connection's state machine works with, resolved for one connection.

use crate::config::{Connection, Settings};
use crate::failure::{Profile, Reason};
use crate::rotation::RotationRules;

/// Base of the ladder when none is configured, ms.
const DEFAULT_BASE_MS: u64 = 1_000;

/// Numbers for one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthRules {
    /// First step of the ladder, ms; 0 stands for 1000.
    pub base_ms: u64,
    /// Doublings of the ladder, and its highest level.
    pub max_steps: u32,
    /// Longest step of the ladder, ms. An announced reset has its own bound.
    pub cap_ms: u64,
    /// Whether an announced reset replaces the ladder.
    pub use_hints: bool,
    /// Failures only leave their error fields; terminal states still apply.
    pub disable_cooling: bool,
    /// A ban also switches the connection off.
    pub auto_disable_banned: bool,
    /// Tells the connection's credential from others; never the credential itself.
    pub credential: Option<u64>,
    /// What the rotation gate counts, and how long a limit rests without a word on its end.
    pub rotation: RotationRules,
}

impl HealthRules {
    /// The rules of `connection`, whose provider has `profile`.
    pub fn new(settings: &Settings, profile: Profile, connection: &Connection) -> Self {
        let cooldown = settings.connection_cooldown.get(profile);
        Self {
            base_ms: cooldown.base_cooldown_ms,
            max_steps: cooldown.max_backoff_steps,
            cap_ms: settings.max_cooldown_ms,
            use_hints: cooldown.use_upstream_retry_hints,
            disable_cooling: connection.disable_cooling,
            auto_disable_banned: settings.auto_disable_banned_accounts
                && (settings.auto_disable_all_accounts || profile == Profile::Oauth),
            credential: None,
            rotation: RotationRules::of_connection(settings, connection),
        }
    }

    /// The same for the credential that `mark` stands for.
    #[must_use]
    pub const fn with_credential(mut self, mark: u64) -> Self {
        self.credential = Some(mark);
        self
    }

    /// A cooldown whose end nobody announced, ms, and the level after it.
    pub(super) fn unannounced(&self, reason: Reason, level: u32) -> (u64, u32) {
        match self.rotation.reset_ms {
            reset if reset > 0 && reason == Reason::RateLimitExceeded => (reset, 0),
            _ => self.climb(level),
        }
    }

    /// The ladder's cooldown at `level`, ms, and the level after it.
    pub fn climb(&self, level: u32) -> (u64, u32) {
        let base = match self.base_ms {
            0 => DEFAULT_BASE_MS,
            base => base,
        };
        let factor = 2_u64.saturating_pow(level.min(self.max_steps));
        let cooldown_ms = base.saturating_mul(factor).min(self.cap_ms);
        (cooldown_ms, level.saturating_add(1).min(self.max_steps))
    }
}
