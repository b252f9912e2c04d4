//! The rotation gate: the environment's numbers, and a connection's own.

use super::super::file;
use super::{Context, extras, gates};
use crate::rotation::{
    ClassOverride, ClassRule, RESET_SECONDS, RotationOverrides, RotationRules, THRESHOLDS,
    WINDOW_SECONDS,
};

/// What the environment says of one class.
struct Variables {
    rotate: &'static str,
    threshold: &'static str,
    window: &'static str,
}

const LIMITED: Variables = Variables {
    rotate: "OMNIROUTE_ROTATE_ON_429",
    threshold: "OMNIROUTE_ROTATE_429_THRESHOLD",
    window: "OMNIROUTE_ROTATE_429_WINDOW_SECONDS",
};
const BAD_GATEWAY: Variables = Variables {
    rotate: "OMNIROUTE_ROTATE_ON_502",
    threshold: "OMNIROUTE_ROTATE_502_THRESHOLD",
    window: "OMNIROUTE_ROTATE_502_WINDOW_SECONDS",
};
const SERVER: Variables = Variables {
    rotate: "OMNIROUTE_ROTATE_ON_500",
    threshold: "OMNIROUTE_ROTATE_500_THRESHOLD",
    window: "OMNIROUTE_ROTATE_500_WINDOW_SECONDS",
};
const BAD_REQUEST: Variables = Variables {
    rotate: "OMNIROUTE_ROTATE_ON_400",
    threshold: "OMNIROUTE_ROTATE_400_THRESHOLD",
    window: "OMNIROUTE_ROTATE_400_WINDOW_SECONDS",
};

/// The environment's rules.
pub(super) fn resolve(context: &mut Context<'_, '_>) -> RotationRules {
    let built_in = RotationRules::DEFAULT;
    let enabled = extras::switch("OMNIROUTE_ROTATION_ENABLED", context);
    let untold = extras::switch("OMNIROUTE_ROTATION_DISABLE_TAG_WITHOUT_RESET", context);
    let reset = "OMNIROUTE_ROTATION_RATE_LIMIT_RESET_SECONDS";
    let reset = gates::number(reset, RESET_SECONDS, context);
    RotationRules {
        enabled: enabled.unwrap_or(built_in.enabled),
        limited: class(built_in.limited, &LIMITED, context),
        bad_gateway: class(built_in.bad_gateway, &BAD_GATEWAY, context),
        server: class(built_in.server, &SERVER, context),
        bad_request: class(built_in.bad_request, &BAD_REQUEST, context),
        reset_ms: reset.map_or(built_in.reset_ms, ms),
        rests_without_reset: untold.unwrap_or(built_in.rests_without_reset),
    }
}

fn class(built_in: ClassRule, names: &Variables, context: &mut Context<'_, '_>) -> ClassRule {
    let rotate = extras::switch(names.rotate, context);
    let threshold = gates::number(names.threshold, THRESHOLDS, context);
    let window = gates::number(names.window, WINDOW_SECONDS, context);
    ClassRule {
        rotate: rotate.unwrap_or(built_in.rotate),
        threshold: threshold.map_or(built_in.threshold, small),
        window_ms: window.map_or(built_in.window_ms, ms),
    }
}

/// A connection's own numbers, whose bounds the schema has checked.
pub(super) fn overrides(given: Option<&file::RotationOverrides>) -> RotationOverrides {
    let Some(given) = given else {
        return RotationOverrides::default();
    };
    let class = |rotate, threshold: Option<u64>, window: Option<u64>| ClassOverride {
        rotate,
        threshold: threshold.map(small),
        window_ms: window.map(ms),
    };
    RotationOverrides {
        limited: class(
            given.rotate_on429,
            given.error429_threshold,
            given.error429_window_seconds,
        ),
        bad_gateway: class(
            given.rotate_on502,
            given.error502_threshold,
            given.error502_window_seconds,
        ),
        server: class(
            given.rotate_on500,
            given.error500_threshold,
            given.error500_window_seconds,
        ),
        bad_request: class(
            given.rotate_on400,
            given.error400_threshold,
            given.error400_window_seconds,
        ),
        reset_ms: given.rate_limit_reset_seconds.map(ms),
    }
}

const fn ms(seconds: u64) -> u64 {
    seconds.saturating_mul(1000)
}

fn small(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
