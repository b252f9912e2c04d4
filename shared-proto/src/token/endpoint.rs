//! Where and how a provider's tokens are refreshed.

use secrecy::{ExposeSecret, SecretString};

/// The token endpoint of a provider, for the refresh-token grant (RFC 6749, 6).
#[derive(Clone, Debug)]
pub struct TokenEndpoint {
    /// Its URL, `http://` or `https://`.
    pub url: String,
    /// As which client the tokens were issued.
    pub client_id: Option<String>,
    /// The client's secret, where it has one.
    pub client_secret: Option<SecretString>,
    /// How the client proves itself.
    pub client_auth: ClientAuth,
    /// How the grant is written.
    pub body: GrantBody,
    /// Asked for again with each refresh; empty leaves them as they are.
    pub scopes: Vec<String>,
}

/// How a client proves itself to a token endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientAuth {
    /// Id and secret are part of the body.
    #[default]
    Body,
    /// HTTP basic authentication.
    Basic,
}

/// How a grant is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GrantBody {
    /// As a form, as the standard has it.
    #[default]
    Form,
    /// As a JSON object with the same names.
    Json,
}

impl PartialEq for TokenEndpoint {
    fn eq(&self, other: &Self) -> bool {
        let secret = |one: &Self| {
            let secret = one.client_secret.as_ref();
            secret.map(|secret| secret.expose_secret().to_owned())
        };
        self.url == other.url
            && self.client_id == other.client_id
            && secret(self) == secret(other)
            && self.client_auth == other.client_auth
            && self.body == other.body
            && self.scopes == other.scopes
    }
}

impl Eq for TokenEndpoint {}
