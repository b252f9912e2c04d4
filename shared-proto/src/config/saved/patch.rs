//! A change of settings as it is sent.

use serde_json::{Map, Value as Json};

use super::super::defaults::derived_degradation;
use super::super::problem::{Path, Problem};
use super::super::report::Report;
use super::super::shape;
use super::super::yaml::Node;
use super::{Area, RESILIENCE, object, sections, spell_profiles};

/// Deepest nesting of what is sent.
const MAX_DEPTH: usize = 16;
/// Statuses of one list.
const MAX_CODES: usize = 20;
/// Other names of keys.
const ALIASES: [(&str, &str); 2] = [
    ("codexSessionAffinityTtlMs", "sessionAffinityTtlMs"),
    ("restateRules", "statusRestatementRules"),
];

/// A change of settings that has the right shape. A null takes what was saved
/// back; sections merge key by key, lists and rules are replaced whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Patch {
    area: Area,
    settings: Map<String, Json>,
}

impl Patch {
    /// Reads the body of a call. The error is every problem; paths are those of
    /// the body, which itself is called `body`.
    pub fn read(area: Area, body: &[u8]) -> Result<Self, Vec<Problem>> {
        let of_body = |message: String| vec![problem("body", message)];
        let sent: Json = serde_json::from_slice(body)
            .map_err(|fault| of_body(format!("is not JSON: {fault}")))?;
        let Json::Object(mut sent) = sent else {
            return Err(of_body("takes an object of settings".to_owned()));
        };
        if depth(sent.values()) > MAX_DEPTH {
            return Err(of_body(format!("is nested deeper than {MAX_DEPTH} levels")));
        }
        if sent.is_empty() {
            return Err(of_body("takes at least one setting".to_owned()));
        }
        let mut problems = prepare(area, &mut sent);
        let settings = match area {
            Area::Resilience => object(RESILIENCE, Json::Object(sent)),
            Area::General => sent,
        };
        let mut report = Report::new("", None);
        let node = Node::of_json(&Json::Object(object("settings", Json::Object(settings))));
        let checked = shape::check_strictly(&node, &mut report);
        let settings = match checked.get("settings") {
            Some(Json::Object(settings)) => settings.clone(),
            _ => Map::new(),
        };
        agree(&settings, &mut report);
        let patch = Self { area, settings };
        problems.extend(report.problems.into_iter().map(|fault| patch.told(fault)));
        if problems.is_empty() {
            Ok(patch)
        } else {
            Err(problems)
        }
    }

    /// The sections that it changes, such as `resilience.providerBreaker`.
    pub fn sections(&self) -> Vec<String> {
        sections(&self.settings)
    }

    /// A problem of all settings in the words of the body.
    pub fn told(&self, mut fault: Problem) -> Problem {
        let head = match self.area {
            Area::Resilience => "settings.resilience",
            Area::General => "settings",
        };
        if let Some(rest) = fault.path.strip_prefix(head) {
            let rest = rest.strip_prefix('.').unwrap_or(rest);
            fault.path = if rest.is_empty() { "body" } else { rest }.to_owned();
        }
        fault.file = String::new();
        (fault.line, fault.column) = (0, 0);
        fault
    }

    /// Whether a problem of all settings is about what it changes.
    pub fn concerns(&self, fault: &Problem) -> bool {
        let mut changed = Vec::new();
        leaves(&self.settings, &Path::of("settings"), &mut changed);
        changed
            .iter()
            .any(|path| within(path, &fault.path) || within(&fault.path, path))
    }

    pub(super) const fn settings(&self) -> &Map<String, Json> {
        &self.settings
    }
}

/// Whether the value at `path` is that at `above`, or below it.
fn within(path: &str, above: &str) -> bool {
    path.strip_prefix(above)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

fn leaves(map: &Map<String, Json>, path: &Path, found: &mut Vec<String>) {
    for (key, value) in map {
        let below = path.key(key);
        match value.as_object().filter(|inner| !inner.is_empty()) {
            Some(inner) => leaves(inner, &below, found),
            None => found.push(below.to_string()),
        }
    }
}

/// Puts other names right. What is said twice, or elsewhere, is a problem.
fn prepare(area: Area, sent: &mut Map<String, Json>) -> Vec<Problem> {
    let mut problems = Vec::new();
    match area {
        Area::Resilience => {
            spell_profiles(sent);
            // Otherwise both would be there.
            for section in super::BY_PROFILE {
                let profiles = sent.get(section).and_then(Json::as_object);
                if profiles.is_some_and(|profiles| profiles.contains_key("apiKey")) {
                    let path = format!("{section}.apiKey");
                    problems.push(problem(&path, "is the same profile as `apikey`"));
                }
            }
        }
        Area::General => {
            if sent.shift_remove(RESILIENCE).is_some() {
                let message = "is changed through PATCH /api/resilience";
                problems.push(problem(RESILIENCE, message));
            }
            for (alias, name) in ALIASES {
                let Some(value) = sent.shift_remove(alias) else {
                    continue;
                };
                if sent.contains_key(name) {
                    let message = format!("is another name of `{name}`; give one of them");
                    problems.push(problem(alias, message));
                } else {
                    sent.insert(name.to_owned(), value);
                }
            }
        }
    }
    problems
}

/// Values that have to agree where both are sent.
fn agree(settings: &Map<String, Json>, report: &mut Report<'_>) {
    let top = Path::of("settings");
    let resilience = settings.get(RESILIENCE);
    let at = |section: Option<&Json>, key: &str| section?.get(key)?.as_u64();
    let breakers = resilience.and_then(|all| all.get("providerBreaker"));
    for profile in ["oauth", "apikey", "local"] {
        let breaker = breakers.and_then(|all| all.get(profile));
        let both = at(breaker, "failureThreshold").zip(at(breaker, "degradationThreshold"));
        let Some((threshold, degradation)) = both else {
            continue;
        };
        // A local server's default, said aloud.
        let derived = u32::try_from(threshold).map_or(0, derived_degradation);
        let is_derived = profile == "local" && degradation == u64::from(derived);
        if threshold > 1 && degradation >= threshold && !is_derived {
            let path = top.key(RESILIENCE).key("providerBreaker").key(profile);
            let message = format!("{degradation} is not below failureThreshold {threshold}");
            report.problem(&path.key("degradationThreshold"), message);
        }
    }
    let gate = resilience.and_then(|all| all.get("providerCooldown"));
    let both = at(gate, "minRetryCooldownMs").zip(at(gate, "maxRetryCooldownMs"));
    if let Some((least, most)) = both.filter(|(least, most)| least > most) {
        let path = top.key(RESILIENCE).key("providerCooldown");
        let message = format!("{most} is less than minRetryCooldownMs {least}");
        report.problem(&path.key("maxRetryCooldownMs"), message);
    }
    let lockout = settings.get("modelLockout");
    let codes = lockout.and_then(|lockout| lockout.get("errorCodes")?.as_array());
    let path = top.key("modelLockout").key("errorCodes");
    if codes.is_some_and(|codes| codes.len() > MAX_CODES) {
        report.problem(&path, format!("takes at most {MAX_CODES} statuses"));
    }
    for (index, code) in codes.into_iter().flatten().enumerate() {
        if !code
            .as_u64()
            .is_some_and(|code| (100..=599).contains(&code))
        {
            report.problem(
                &path.index(index),
                format!("{code} is not a status (100 to 599)"),
            );
        }
    }
}

fn problem(path: &str, message: impl Into<String>) -> Problem {
    Problem {
        file: String::new(),
        line: 0,
        column: 0,
        path: path.to_owned(),
        message: message.into(),
        suggestion: None,
    }
}

/// Levels of lists and objects; the reader of JSON bounds the recursion.
fn depth<'v>(values: impl Iterator<Item = &'v Json>) -> usize {
    let below = values.map(|value| match value {
        Json::Array(items) => depth(items.iter()),
        Json::Object(map) => depth(map.values()),
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => 0,
    });
    below.max().unwrap_or(0).saturating_add(1)
}
