//! `combos:`

use std::collections::HashMap;

use crate::id::{ConnectionId, ProviderId};

use super::super::problem::{Path, nearest, shorten};
use super::super::settings::OwnWaits;
use super::super::{Combo, QueueRules, StrategyName, Target, file};
use super::{Context, NameRule, World, check_name};

/// Every strategy's name. This version has the first.
pub(crate) const STRATEGIES: [&str; 19] = [
    "priority",
    "weighted",
    "round-robin",
    "context-relay",
    "fill-first",
    "p2c",
    "random",
    "least-used",
    "cost-optimized",
    "reset-aware",
    "reset-window",
    "headroom",
    "strict-random",
    "auto",
    "lkgp",
    "context-optimized",
    "cache-optimized",
    "fusion",
    "pipeline",
];

/// Names of combos.
const COMBO_NAME: NameRule = NameRule {
    longest: 100,
    besides: " -_/.[]",
};

/// Resolves the combos.
pub(super) fn resolve(
    given: &[file::Combo],
    queue: QueueRules,
    world: &World<'_>,
    context: &mut Context<'_, '_>,
) -> Vec<Combo> {
    let path = Path::of("combos");
    let mut names = HashMap::new();
    for (at, combo) in given.iter().enumerate() {
        let path = path.index(at).key("name");
        if let Some(name) = &combo.name
            && check_name(name, COMBO_NAME, &mut names, (at, &path), context)
        {
            warn_of_shadow(name, &path, world, context);
        }
    }
    let mut combos = Vec::with_capacity(given.len());
    for (at, combo) in given.iter().enumerate() {
        let path = path.index(at);
        if let Some(strategy) = combo.strategy.as_deref().filter(|name| *name != "priority") {
            let message = format!(
                "the strategy `{strategy}` is not available in this version; use `priority`"
            );
            context.report.problem(&path.key("strategy"), message);
        }
        let path = path.key("targets");
        if combo.targets.as_ref().is_some_and(Vec::is_empty) {
            context
                .report
                .problem(&path, "a combo needs at least one target");
        }
        let targets = combo.targets.iter().flatten().enumerate();
        let targets = targets
            .filter_map(|(at, given)| target(given, &path.index(at), world, &names, context))
            .collect();
        let waits = waits(combo.config.as_ref());
        combos.push(Combo {
            name: combo.name.clone().unwrap_or_default(),
            strategy: StrategyName::Priority,
            targets,
            queue: waits.over(queue),
            waits,
        });
    }
    combos
}

/// What a combo says of how its requests wait for a slot.
pub(super) fn waits(given: Option<&file::ComboConfig>) -> OwnWaits {
    OwnWaits {
        timeout_ms: given.and_then(|given| given.queue_timeout_ms),
        depth: given.and_then(|given| u32::try_from(given.queue_depth?).ok()),
    }
}

/// A combo may take the place of a model on purpose, but should not by accident.
fn warn_of_shadow(name: &str, path: &Path, world: &World<'_>, context: &mut Context<'_, '_>) {
    let shadowed = match name.split_once('/') {
        Some((provider, _)) => world.providers.get(provider),
        None => world.providers.values().find(|provider| {
            provider.serves(name) && world.by_provider.contains_key(provider.id.as_str())
        }),
    };
    if let Some(provider) = shadowed {
        let message = format!(
            "hides the model of that name at `{}`: requests for it get the combo",
            provider.id
        );
        context.report.warn(path, message);
    }
}

fn target(
    given: &file::Target,
    path: &Path,
    world: &World<'_>,
    combos: &HashMap<&str, usize>,
    context: &mut Context<'_, '_>,
) -> Option<Target> {
    let model_path = path.key("model");
    let name = given.model.as_deref()?;
    let split = name
        .split_once('/')
        .filter(|(_, model)| !model.trim().is_empty());
    let known = split.filter(|(provider, _)| world.providers.contains_key(*provider));
    let Some((provider, model)) = known else {
        refuse_model(name, split, &model_path, (world, combos), context);
        return None;
    };
    let provider_id = ProviderId::from(provider);
    let connections = world
        .by_provider
        .get(provider)
        .map_or(&[][..], Vec::as_slice);
    match given.connection.as_deref() {
        Some(id) => check_connection(
            id,
            (provider, model),
            &path.key("connection"),
            world,
            context,
        ),
        None if connections.is_empty() => {
            let message =
                format!("no connection belongs to `{provider}`, so this target is never used");
            context.report.warn(&model_path, message);
        }
        None if !connections.iter().any(|c| c.serves(model)) => {
            let message = format!(
                "no connection of `{provider}` lists `{}` under its models",
                shorten(model)
            );
            context.report.warn(&model_path, message);
        }
        None => {}
    }
    Some(Target {
        provider: provider_id,
        model: model.to_owned(),
        connection: given.connection.as_deref().map(ConnectionId::from),
        weight: u32::try_from(given.weight.unwrap_or(1)).unwrap_or(u32::MAX),
    })
}

/// Says why a target's model is none, and what it may have been meant to be.
fn refuse_model(
    name: &str,
    split: Option<(&str, &str)>,
    path: &Path,
    (world, combos): (&World<'_>, &HashMap<&str, usize>),
    context: &mut Context<'_, '_>,
) {
    let shown = shorten(name);
    if combos.contains_key(name) {
        let message = format!(
            "`{shown}` is a combo; a combo inside a combo is not available in this version"
        );
        context.report.problem(path, message);
        return;
    }
    if let Some((provider, model)) = split {
        let ids = world.providers.keys().map(ProviderId::as_str);
        let suggestion = nearest(provider, ids).map(|id| format!("{id}/{model}"));
        let message = format!("there is no provider `{}`", shorten(provider));
        context.report.problem_with(path, message, suggestion);
        return;
    }
    let maker = world
        .providers
        .values()
        .find(|provider| provider.serves(name));
    let suggestion = maker.map(|provider| format!("{}/{name}", provider.id));
    let message = format!("`{shown}` is not `provider/model`");
    context.report.problem_with(path, message, suggestion);
}

fn check_connection(
    id: &str,
    (provider, model): (&str, &str),
    path: &Path,
    world: &World<'_>,
    context: &mut Context<'_, '_>,
) {
    let Some(connection) = world.by_id.get(id) else {
        let message = format!("there is no connection `{}`", shorten(id));
        context
            .report
            .unknown(path, message, id, world.connection_ids());
        return;
    };
    if connection.provider.as_str() != provider {
        let message = format!(
            "`{id}` is a connection of `{}`, not of `{provider}`",
            connection.provider
        );
        context.report.problem(path, message);
    } else if !connection.enabled {
        let message = format!("`{id}` is not enabled, so this target is never used");
        context.report.warn(path, message);
    } else if !connection.serves(model) {
        let message = format!("`{id}` does not list `{}` under its models", shorten(model));
        context.report.warn(path, message);
    }
}
