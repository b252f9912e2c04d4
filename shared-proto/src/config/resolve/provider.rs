//! `providers:` on top of the catalogue.

mod headers;

use std::collections::{BTreeMap, HashMap};

use crate::catalogue;
use crate::failure::Profile;
use crate::id::ProviderId;

use self::headers::headers;
use super::super::file::{self, Auth, AuthHeader, ProfileName, ProtocolName};
use super::super::problem::Path;
use super::super::{AuthKind, AuthStyle, Endpoints, Provider, Reading, Timeouts, nature};
use super::{Context, PROVIDER_NAME, check_name, quota, rules, token_endpoint, url};

/// What is known of a provider before its flags.
pub(crate) struct Parts<'a> {
    pub(crate) id: &'a str,
    pub(crate) endpoints: Endpoints,
    pub(crate) auth: Auth,
    pub(crate) auth_header: Option<AuthHeader>,
    pub(crate) profile: Option<ProfileName>,
    pub(crate) timeouts: &'a file::Timeouts,
}

/// A provider with the defaults that follow from its parts.
pub(crate) fn assemble(parts: Parts<'_>) -> Provider {
    let Parts {
        id,
        endpoints,
        auth,
        auth_header,
        profile,
        timeouts,
    } = parts;
    let profile = profile.map_or_else(|| profile_of(auth), profile_named);
    Provider {
        id: ProviderId::from(id),
        auth: style(auth_header, &endpoints),
        endpoints,
        auth_kind: kind(auth),
        profile,
        key_env: Vec::new(),
        models: Vec::new(),
        default_headers: Vec::new(),
        timeouts: with_timeouts(Timeouts::of(profile), timeouts),
        per_model_quota: profile == Profile::Local || nature::is_compatible(id),
        lenient_stream_end: false,
        canonical: ProviderId::from(id),
        reading: Reading::default(),
        model_families: Vec::new(),
        daily_reset: None,
        egress_bucket_family: None,
        max_tools: None,
        token_endpoint: None,
        usage_url: None,
    }
}

/// The catalogue with the file's additions and overrides.
pub(super) fn resolve(
    given: &[file::Provider],
    context: &mut Context<'_, '_>,
) -> BTreeMap<ProviderId, Provider> {
    let built_in = catalogue::entries().unwrap_or_default();
    let mut providers: BTreeMap<ProviderId, Provider> = built_in
        .iter()
        .map(|entry| (entry.provider.id.clone(), entry.provider.clone()))
        .collect();
    let path = Path::of("providers");
    let mut ids = HashMap::new();
    for (at, file) in given.iter().enumerate() {
        let path = path.index(at);
        let Some(id) = file.id.as_deref() else {
            continue;
        };
        if !check_name(id, PROVIDER_NAME, &mut ids, (at, &path.key("id")), context) {
            continue;
        }
        let base = catalogue::entry(id);
        let provider = one(id, file, base, &path, context);
        providers.insert(provider.id.clone(), provider);
    }
    providers
}

fn one(
    id: &str,
    file: &file::Provider,
    base: Option<&catalogue::Entry>,
    path: &Path,
    context: &mut Context<'_, '_>,
) -> Provider {
    let endpoints = endpoints(file, base, path, context);
    let base = base.map(|entry| &entry.provider);
    let auth = file
        .auth
        .unwrap_or_else(|| base.map_or(Auth::ApiKey, |base| auth_of(base.auth_kind)));
    let is_local = base.is_some_and(|base| base.profile == Profile::Local);
    let profile = match (file.profile, file.auth, base) {
        (Some(name), ..) => profile_named(name),
        (None, None, Some(base)) => base.profile,
        (None, Some(_), Some(_)) if is_local => Profile::Local,
        (None, ..) => profile_of(auth),
    };
    let start = base.filter(|base| base.profile == profile);
    let start = start.map_or_else(|| Timeouts::of(profile), |base| base.timeouts);
    let nothing = file::Timeouts::default();
    let given = file.timeouts.as_ref().unwrap_or(&nothing);
    let passthrough = file.passthrough_models == Some(true);
    let own = profile == Profile::Local || nature::is_compatible(id);
    let inherited = base.map_or(own, |base| base.per_model_quota);
    Provider {
        id: ProviderId::from(id),
        auth: match (file.auth_header, file.protocol.is_some(), base) {
            (None, false, Some(base)) => base.auth,
            (header, ..) => style(header, &endpoints),
        },
        endpoints,
        auth_kind: kind(auth),
        profile,
        key_env: base.map_or_else(Vec::new, |base| base.key_env.clone()),
        models: models(file, base, path, context),
        default_headers: headers(file, base, path, context),
        timeouts: with_timeouts(start, given),
        per_model_quota: file.per_model_quota.unwrap_or(passthrough || inherited),
        lenient_stream_end: file
            .lenient_stream_end
            .unwrap_or_else(|| base.is_some_and(|base| base.lenient_stream_end)),
        canonical: base.map_or_else(|| ProviderId::from(id), |base| base.id.clone()),
        reading: rules::reading(file, base),
        model_families: base.map_or_else(Vec::new, |base| base.model_families.clone()),
        daily_reset: rules::daily_reset(
            file.daily_quota_reset_timezone.as_deref(),
            file.daily_quota_reset_hour,
            (path, context),
        )
        .or_else(|| base.and_then(|base| base.daily_reset.clone())),
        egress_bucket_family: match &file.egress_bucket_family {
            Some(family) => Some(family.clone()).filter(|family| !family.is_empty()),
            None => base.and_then(|base| base.egress_bucket_family.clone()),
        },
        max_tools: file.max_tools.and_then(|most| u32::try_from(most).ok()),
        token_endpoint: token_endpoint::resolve(file.oauth.as_ref(), base, path, context),
        usage_url: quota::usage_url(file, base, path, context),
    }
}

/// Where the provider speaks what: the base, the protocols that the file
/// keeps of it, and the address that it gives them.
fn endpoints(
    file: &file::Provider,
    base: Option<&catalogue::Entry>,
    path: &Path,
    context: &mut Context<'_, '_>,
) -> Endpoints {
    let nowhere = Endpoints::default();
    let before = base.map_or(&nowhere, |entry| &entry.provider.endpoints);
    let own_url = base.and_then(|entry| entry.own_url.as_ref());
    let url_path = path.key("baseUrl");
    let url = file
        .base_url
        .as_deref()
        .and_then(|text| url::base_url(text, &url_path, context));
    let named = file.protocol.as_ref().map(file::OneOrMany::as_slice);
    let simulated = named.map_or(before.simulated, |named| {
        named.contains(&ProtocolName::Simulated)
    });
    if simulated {
        refuse_mixture(file, path, context);
        return Endpoints {
            simulated,
            ..Endpoints::default()
        };
    }
    let spoken = before.protocols();
    let of_base = own_url.map_or(spoken.as_slice(), |own| own.protocols.as_slice());
    let protocols = named.unwrap_or(of_base);
    let protocol_path = path.key("protocol");
    if protocols.is_empty() && !context.report.faulty_below(&protocol_path) {
        let message = "is missing; a provider that is not in the catalogue needs it";
        context.report.problem(&protocol_path, message);
    }
    // An address of one protocol leaves those of the others alone.
    let mut after = match (&url, named) {
        (Some(_), Some(_)) => before.clone(),
        _ => Endpoints::default(),
    };
    for protocol in protocols {
        match url.as_deref().or_else(|| before.get(*protocol)) {
            Some(url) => after.set(*protocol, url),
            None if file.base_url.is_some() || own_url.is_some() => {}
            None => {
                let message = "is missing; the protocol needs an address";
                context.report.problem(&url_path, message);
                break;
            }
        }
    }
    after
}

/// A provider that answers in the process has neither address nor other protocols.
fn refuse_mixture(file: &file::Provider, path: &Path, context: &mut Context<'_, '_>) {
    let named = file
        .protocol
        .as_ref()
        .map_or(0, |named| named.as_slice().len());
    if named > 1 {
        let message = "`simulated` answers in the process and goes with no other protocol";
        context.report.problem(&path.key("protocol"), message);
    }
    if file.base_url.is_some() {
        let message = "a simulated provider answers in the process and has no baseUrl";
        context.report.problem(&path.key("baseUrl"), message);
    }
}

fn models(
    file: &file::Provider,
    base: Option<&Provider>,
    path: &Path,
    context: &mut Context<'_, '_>,
) -> Vec<String> {
    let Some(models) = &file.models else {
        return base.map_or_else(Vec::new, |base| base.models.clone());
    };
    check_models(models, &path.key("models"), context);
    models.clone()
}

/// Names of models, or a prefix and `*`.
pub(super) fn check_models(models: &[String], path: &Path, context: &mut Context<'_, '_>) {
    for (at, model) in models.iter().enumerate() {
        let star = model
            .find('*')
            .is_some_and(|star| star.saturating_add(1) != model.len());
        let fault = if model.trim().is_empty() {
            "may not be empty"
        } else if star {
            "`*` stands only at the end"
        } else {
            continue;
        };
        context.report.problem(&path.index(at), fault);
    }
}

fn with_timeouts(start: Timeouts, given: &file::Timeouts) -> Timeouts {
    Timeouts {
        connect_ms: given.connect_ms.unwrap_or(start.connect_ms),
        response_headers_ms: given
            .response_headers_ms
            .unwrap_or(start.response_headers_ms),
        first_content_ms: given.first_content_ms.unwrap_or(start.first_content_ms),
        byte_idle_ms: given.byte_idle_ms.unwrap_or(start.byte_idle_ms),
        progress_idle_ms: given.progress_idle_ms.unwrap_or(start.progress_idle_ms),
        total_ms: given.total_ms.unwrap_or(start.total_ms),
    }
}

/// The header that carries a key: as said, else as the only protocol has it.
fn style(header: Option<AuthHeader>, endpoints: &Endpoints) -> AuthStyle {
    match header {
        Some(AuthHeader::Bearer) => AuthStyle::Bearer,
        Some(AuthHeader::XApiKey) => AuthStyle::XApiKey,
        Some(AuthHeader::ApiKey) => AuthStyle::ApiKey,
        Some(AuthHeader::XGoogApiKey) => AuthStyle::XGoogApiKey,
        None => match endpoints.protocols().as_slice() {
            [ProtocolName::Simulated] => AuthStyle::None,
            [ProtocolName::Anthropic] => AuthStyle::XApiKey,
            [ProtocolName::Gemini] => AuthStyle::XGoogApiKey,
            _ => AuthStyle::Bearer,
        },
    }
}

const fn kind(auth: Auth) -> AuthKind {
    match auth {
        Auth::ApiKey => AuthKind::ApiKey,
        Auth::Oauth => AuthKind::Oauth,
        Auth::None => AuthKind::None,
    }
}

const fn auth_of(kind: AuthKind) -> Auth {
    match kind {
        AuthKind::ApiKey => Auth::ApiKey,
        AuthKind::Oauth => Auth::Oauth,
        AuthKind::None => Auth::None,
    }
}

/// Anything but a key counts as a subscription, unless something says it is local.
const fn profile_of(auth: Auth) -> Profile {
    match auth {
        Auth::ApiKey => Profile::ApiKey,
        Auth::Oauth | Auth::None => Profile::Oauth,
    }
}

const fn profile_named(name: ProfileName) -> Profile {
    match name {
        ProfileName::Oauth => Profile::Oauth,
        ProfileName::ApiKey => Profile::ApiKey,
        ProfileName::Local => Profile::Local,
    }
}

impl Endpoints {
    /// Sets where a protocol is spoken.
    pub(crate) fn set(&mut self, protocol: ProtocolName, url: &str) {
        let place = match protocol {
            ProtocolName::Simulated => {
                self.simulated = true;
                return;
            }
            ProtocolName::Openai => &mut self.openai,
            ProtocolName::Responses => &mut self.responses,
            ProtocolName::Anthropic => &mut self.anthropic,
            ProtocolName::Gemini => &mut self.gemini,
        };
        *place = Some(url.to_owned());
    }

    /// Where a protocol is spoken.
    pub(super) fn get(&self, protocol: ProtocolName) -> Option<&str> {
        match protocol {
            ProtocolName::Simulated => None,
            ProtocolName::Openai => self.openai.as_deref(),
            ProtocolName::Responses => self.responses.as_deref(),
            ProtocolName::Anthropic => self.anthropic.as_deref(),
            ProtocolName::Gemini => self.gemini.as_deref(),
        }
    }

    /// What is spoken at all.
    pub(super) fn protocols(&self) -> Vec<ProtocolName> {
        let over_http = [
            ProtocolName::Openai,
            ProtocolName::Responses,
            ProtocolName::Anthropic,
            ProtocolName::Gemini,
        ];
        let mut spoken: Vec<ProtocolName> = over_http
            .into_iter()
            .filter(|protocol| self.get(*protocol).is_some())
            .collect();
        if self.simulated {
            spoken.push(ProtocolName::Simulated);
        }
        spoken
    }
}
