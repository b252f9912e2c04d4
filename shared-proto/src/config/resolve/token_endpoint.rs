//! `oauth:` of a provider.

use super::super::Provider;
use super::super::file::{self, ClientAuth as ClientAuthName, GrantBody as GrantBodyName};
use super::super::problem::Path;
use super::{Context, url};
use crate::token::{ClientAuth, GrantBody, TokenEndpoint};

/// Where tokens are refreshed: the base, and what the file says of it.
pub(super) fn resolve(
    file: Option<&file::TokenEndpoint>,
    base: Option<&Provider>,
    path: &Path,
    context: &mut Context<'_, '_>,
) -> Option<TokenEndpoint> {
    let before = base.and_then(|base| base.token_endpoint.as_ref());
    let Some(file) = file else {
        return before.cloned();
    };
    let path = path.key("oauth");
    let url_path = path.key("tokenUrl");
    let url = match (&file.token_url, before) {
        (Some(text), _) => url::base_url(text, &url_path, context)?,
        (None, Some(before)) => before.url.clone(),
        (None, None) => {
            if !context.report.faulty_below(&url_path) {
                context.report.problem(&url_path, "is missing");
            }
            return None;
        }
    };
    let secret = file.client_secret.as_ref();
    let secret = secret.and_then(|secret| context.secret(secret, &path.key("clientSecret")));
    let mut endpoint = described(file, url, before);
    if secret.is_some() {
        endpoint.client_secret = secret;
    }
    Some(endpoint)
}

/// An endpoint at `url` as a file describes it on top of another; its client
/// secret is left as it was.
pub(crate) fn described(
    file: &file::TokenEndpoint,
    url: String,
    before: Option<&TokenEndpoint>,
) -> TokenEndpoint {
    TokenEndpoint {
        url,
        client_id: match &file.client_id {
            Some(id) => Some(id.clone()).filter(|id| !id.is_empty()),
            None => before.and_then(|before| before.client_id.clone()),
        },
        client_secret: before.and_then(|before| before.client_secret.clone()),
        client_auth: match file.client_auth {
            Some(ClientAuthName::Body) => ClientAuth::Body,
            Some(ClientAuthName::Basic) => ClientAuth::Basic,
            None => before.map_or_else(ClientAuth::default, |before| before.client_auth),
        },
        body: match file.body {
            Some(GrantBodyName::Form) => GrantBody::Form,
            Some(GrantBodyName::Json) => GrantBody::Json,
            None => before.map_or_else(GrantBody::default, |before| before.body),
        },
        scopes: match &file.scopes {
            Some(scopes) => scopes.clone(),
            None => before.map_or_else(Vec::new, |before| before.scopes.clone()),
        },
    }
}
