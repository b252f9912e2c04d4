//! The gate's numbers.

use super::RotationClass;
use crate::config::{Connection, Settings};

/// Bounds of a threshold.
pub const THRESHOLDS: (u64, u64) = (1, 100);
/// Bounds of a window, s.
pub const WINDOW_SECONDS: (u64, u64) = (1, 86_400);
/// Bounds of the rest of a limit without a word on its end, s; 0 is none.
pub const RESET_SECONDS: (u64, u64) = (0, 86_400);

/// What holds for one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassRule {
    /// Whether its failures may move a request on.
    pub rotate: bool,
    /// From the how manieth within the window on; at least 1.
    pub threshold: u32,
    /// How long a failure is counted, ms.
    pub window_ms: u64,
}

/// What holds for one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RotationRules {
    /// Whether any failure of these classes may move a request on.
    pub enabled: bool,
    /// 429.
    pub limited: ClassRule,
    /// 502, and no answer at all.
    pub bad_gateway: ClassRule,
    /// Every other 5xx.
    pub server: ClassRule,
    /// 400.
    pub bad_request: ClassRule,
    /// Rest of a rate limit that says nothing of its end, in place of the ladder, ms; 0 is the ladder.
    pub reset_ms: u64,
    /// Whether a failure rests what it is charged to although nothing says until when.
    pub rests_without_reset: bool,
}

impl Default for RotationRules {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl RotationRules {
    /// What holds where nobody says anything: the gate is open.
    pub const DEFAULT: Self = {
        let on = ClassRule {
            rotate: true,
            threshold: 1,
            window_ms: 120_000,
        };
        Self {
            enabled: true,
            limited: on,
            bad_gateway: on,
            server: on,
            bad_request: ClassRule {
                rotate: false,
                ..on
            },
            reset_ms: 0,
            rests_without_reset: true,
        }
    };

    /// The rules of `connection`: its own numbers go before those of `settings`.
    pub fn of_connection(settings: &Settings, connection: &Connection) -> Self {
        let (all, own) = (&settings.rotation, &connection.rotation);
        Self {
            limited: own.limited.over(all.limited),
            bad_gateway: own.bad_gateway.over(all.bad_gateway),
            server: own.server.over(all.server),
            bad_request: own.bad_request.over(all.bad_request),
            reset_ms: own.reset_ms.unwrap_or(all.reset_ms),
            ..*all
        }
    }

    /// The rule of one class.
    pub const fn of(&self, class: RotationClass) -> &ClassRule {
        match class {
            RotationClass::Limited => &self.limited,
            RotationClass::BadGateway => &self.bad_gateway,
            RotationClass::Server => &self.server,
            RotationClass::BadRequest => &self.bad_request,
        }
    }
}

/// A connection's own word on one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassOverride {
    /// In place of [`ClassRule::rotate`].
    pub rotate: Option<bool>,
    /// In place of [`ClassRule::threshold`].
    pub threshold: Option<u32>,
    /// In place of [`ClassRule::window_ms`].
    pub window_ms: Option<u64>,
}

impl ClassOverride {
    fn over(self, before: ClassRule) -> ClassRule {
        ClassRule {
            rotate: self.rotate.unwrap_or(before.rotate),
            threshold: self.threshold.unwrap_or(before.threshold),
            window_ms: self.window_ms.unwrap_or(before.window_ms),
        }
    }
}

/// A connection's own numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RotationOverrides {
    /// Of 429.
    pub limited: ClassOverride,
    /// Of 502, and no answer at all.
    pub bad_gateway: ClassOverride,
    /// Of every other 5xx.
    pub server: ClassOverride,
    /// Of 400.
    pub bad_request: ClassOverride,
    /// In place of [`RotationRules::reset_ms`].
    pub reset_ms: Option<u64>,
}
