//! Settings that were saved through the API, in force on every node at once.
//!
//! What was saved is one record ([`Saved`]): the part of `settings` that
//! somebody changed, in the words of the file. It lies over the file's section
//! before the one resolver sees it ([`Config::with_saved`]), so the file's
//! bounds, messages and cross-checks hold for it too. A change ([`Patch`]) is
//! judged more strictly than a file: a program sent it, and hears at once.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use crate::mirror::key;
use crate::mirror::record::Body;

use super::load::{Env, Overrides};
use super::problem::Problem;
use super::report::Report;
use super::resolve::{self, Context};
use super::yaml::Node;
use super::{Combo, Config, file, shape};

mod patch;
mod shown;

pub use patch::Patch;

/// What messages call the saved settings.
const NAME: &str = "saved settings";

/// Which settings a call is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Area {
    /// `settings.resilience`.
    Resilience,
    /// All of `settings` but `resilience`.
    General,
}

/// What was saved, as its record holds it. Keys that this version does not
/// know are kept, and ignored.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    /// The part of `settings` that was saved, without nulls.
    #[serde(default)]
    settings: Map<String, Json>,
    /// What a newer version keeps beside it.
    #[serde(flatten)]
    other: Map<String, Json>,
}

impl Body for Saved {
    const KIND: &'static str = key::SETTINGS;
    const VERSION: u16 = 1;
}

impl Saved {
    /// The same after a change.
    #[must_use]
    pub fn patched(&self, patch: &Patch) -> Self {
        let mut next = self.clone();
        shape::merge(&mut next.settings, patch.settings());
        next
    }

    /// The sections of which something is saved, such as
    /// `resilience.providerBreaker` and `modelLockout`.
    pub fn sections(&self) -> Vec<String> {
        sections(&self.settings)
    }

    fn known(&self) -> Map<String, Json> {
        shape::known_only(&self.settings)
    }
}

fn sections(settings: &Map<String, Json>) -> Vec<String> {
    let mut names = Vec::new();
    for (key, value) in settings {
        match value.as_object().filter(|_| key == RESILIENCE) {
            Some(inner) => names.extend(inner.keys().map(|name| format!("{RESILIENCE}.{name}"))),
            None => names.push(key.clone()),
        }
    }
    names
}

fn object(key: &str, value: Json) -> Map<String, Json> {
    let mut map = Map::new();
    map.insert(key.to_owned(), value);
    map
}

/// The section that has a route of its own.
const RESILIENCE: &str = "resilience";
/// The sections with a value for each profile.
const BY_PROFILE: [&str; 2] = ["connectionCooldown", "providerBreaker"];

/// Where the settings in force come from, cleaned of what does not fit.
#[derive(Clone, Debug, Default)]
pub(super) struct Given {
    /// What the file says.
    file: Map<String, Json>,
    /// The same with what was saved over it.
    whole: Map<String, Json>,
}

impl Given {
    /// What the file says, as the walk over its shape left it.
    pub(super) fn by_file(checked: &Json) -> Self {
        let settings = checked.get("settings").and_then(Json::as_object);
        let mut file = settings.cloned().unwrap_or_default();
        if let Some(Json::Object(resilience)) = file.get_mut(RESILIENCE) {
            spell_profiles(resilience);
        }
        Self {
            whole: file.clone(),
            file,
        }
    }
}

/// `apikey` for `apiKey`, which is the same profile.
fn spell_profiles(resilience: &mut Map<String, Json>) {
    for section in BY_PROFILE {
        let Some(Json::Object(profiles)) = resilience.get_mut(section) else {
            continue;
        };
        if !profiles.contains_key("apikey")
            && let Some(value) = profiles.shift_remove("apiKey")
        {
            profiles.insert("apikey".to_owned(), value);
        }
    }
}

impl Config {
    /// The same configuration with what was saved instead of what was saved
    /// before; and what works differently from what was saved. The error is
    /// every problem: then nothing of it can be used.
    pub fn with_saved(
        &self,
        saved: &Saved,
        env: &dyn Env,
    ) -> Result<(Self, Vec<Problem>), Vec<Problem>> {
        let mut report = Report::new(NAME, None);
        let wrapped = Json::Object(object("settings", Json::Object(saved.known())));
        let checked = shape::check(&Node::of_json(&wrapped), &mut report);
        let mut whole = self.given.file.clone();
        if let Some(Json::Object(over)) = checked.get("settings") {
            shape::merge(&mut whole, over);
        }
        let section: file::Settings = serde_json::from_value(Json::Object(whole.clone()))
            .unwrap_or_else(|fault| {
                let message = format!("they do not fit the schema: {fault}");
                report.problem(&super::problem::Path::of("settings"), message);
                file::Settings::default()
            });
        let mut context = Context {
            report: &mut report,
            env,
            overrides: &Overrides::default(),
        };
        let settings = resolve::settings(section, &mut context);
        if !report.problems.is_empty() {
            return Err(report.problems);
        }
        let again = |combo: &Arc<Combo>| {
            Arc::new(Combo {
                queue: combo.waits.over(settings.queue),
                ..Combo::clone(combo)
            })
        };
        let config = Self {
            combos: self.combos.iter().map(again).collect(),
            settings,
            given: Arc::new(Given {
                file: self.given.file.clone(),
                whole,
            }),
            ..self.clone()
        };
        Ok((config, report.warnings))
    }
}
