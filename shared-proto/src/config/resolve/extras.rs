//! `settings.usageWall`, `settings.maxTools` and `settings.emergencyFallback`.

use std::collections::BTreeMap;

use crate::id::ProviderId;

use super::super::problem::{Path, shorten};
use super::super::report::Origin;
use super::super::settings::MAX_TOOLS;
use super::super::{EmergencyFallback, Provider, UsageWall, file};
use super::{Context, url};

const MAX_TOOLS_VARIABLE: &str = "OMNIROUTE_MAX_TOOLS_LIMIT";
const EMERGENCY_VARIABLE: &str = "OMNIROUTE_EMERGENCY_FALLBACK";
const PROBE_VARIABLE: &str = "PROBE_CAN_DISABLE";

pub(super) fn usage_wall(
    given: Option<file::UsageWall>,
    context: &mut Context<'_, '_>,
) -> UsageWall {
    let path = Path::of("settings").key("usageWall").key("apiBaseUrl");
    let given = given.and_then(|given| given.api_base_url);
    let given = given.and_then(|text| url::base_url(&text, &path, context));
    given.map_or_else(UsageWall::default, |api_base_url| UsageWall {
        api_base_url,
    })
}

/// The file's word goes before the variable's.
pub(super) fn max_tools(given: Option<u64>, context: &mut Context<'_, '_>) -> u32 {
    let of_variable = context.variable(MAX_TOOLS_VARIABLE).and_then(|text| {
        let number = text.trim().parse().ok().filter(|number: &u32| *number > 0);
        if number.is_none() {
            let message = "is no whole number above 0; it is not used";
            let origin = Origin::Variable(MAX_TOOLS_VARIABLE);
            context.report.warn_outside(origin, message);
        }
        number
    });
    let given = given.map(|number| u32::try_from(number).unwrap_or(u32::MAX));
    given.or(of_variable).unwrap_or(MAX_TOOLS)
}

/// `settings.probeCanDisable`; the file's word goes before the variable's.
pub(super) fn probe_can_disable(given: Option<bool>, context: &mut Context<'_, '_>) -> bool {
    let of_variable = switch(PROBE_VARIABLE, context);
    given.or(of_variable).unwrap_or(false)
}

/// The file's word goes before the variable's.
pub(super) fn emergency(
    given: Option<file::EmergencyFallback>,
    context: &mut Context<'_, '_>,
) -> EmergencyFallback {
    let built_in = EmergencyFallback::default();
    let given = given.unwrap_or_default();
    let of_variable = switch(EMERGENCY_VARIABLE, context);
    EmergencyFallback {
        enabled: given.enabled.or(of_variable).unwrap_or(built_in.enabled),
        target: given.target.unwrap_or(built_in.target),
        max_output_tokens: given
            .max_output_tokens
            .unwrap_or(built_in.max_output_tokens),
    }
}

/// A switch from the environment; any other word counts as not set, with a warning.
pub(super) fn switch(name: &'static str, context: &mut Context<'_, '_>) -> Option<bool> {
    let text = context.variable(name)?;
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Some(true),
        "false" | "0" | "no" | "off" => Some(false),
        _ => {
            let message = "is neither true nor false; it is not used";
            context.report.warn_outside(Origin::Variable(name), message);
            None
        }
    }
}

/// The target of the fallback has to be a model of a provider that is known.
pub(super) fn check_target(
    fallback: &EmergencyFallback,
    providers: &BTreeMap<ProviderId, Provider>,
    context: &mut Context<'_, '_>,
) {
    let path = Path::of("settings").key("emergencyFallback").key("target");
    match fallback.target.split_once('/') {
        Some((provider, model)) if !provider.is_empty() && !model.is_empty() => {
            if !providers.contains_key(provider) {
                let message = format!("there is no provider `{}`", shorten(provider));
                let known = providers.keys().map(ProviderId::as_str);
                context.report.unknown(&path, message, provider, known);
            }
        }
        Some(_) | None => {
            let message = "is written provider/model";
            context.report.problem(&path, message);
        }
    }
}
