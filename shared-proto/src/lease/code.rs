//! How a lease is refused: codes, statuses, bodies.

use serde::Serialize;

/// `error.type` of every refusal here.
pub const ERROR_TYPE: &str = "lease_error";

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $status:literal, $message:literal;)*) => {
        /// Why a lease operation, or a request under a lease, is refused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum LeaseCode {
            $($(#[$doc])* $name,)*
        }

        impl LeaseCode {
            /// Each of them, in the order in which they are checked.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The word clients read.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $code,)* }
            }

            /// The HTTP status it is answered with.
            pub const fn status(self) -> u16 {
                match self { $(Self::$name => $status,)* }
            }

            /// What is said to people.
            pub const fn message(self) -> &'static str {
                match self { $(Self::$name => $message,)* }
            }
        }
    };
}

codes! {
    /// No API key was sent.
    AuthenticationRequired = "LEASE_AUTHENTICATION_REQUIRED", 401, "A session lease needs an API key.";
    /// The API key is not a valid one.
    ApiKeyInvalid = "LEASE_API_KEY_INVALID", 401, "The API key is not valid.";
    /// The media type is not JSON.
    ContentTypeRequired = "LEASE_CONTENT_TYPE_REQUIRED", 415, "The content type has to be application/json.";
    /// The body is not JSON, or not one of the actions.
    ActionInvalid = "LEASE_ACTION_INVALID", 400, "The body has to be one of the actions acquire, renew, release and status, with its fields.";
    /// The key's policy can't be judged.
    KeyPolicyInvalid = "LEASE_KEY_POLICY_INVALID", 403, "The policy of the API key is not valid.";
    /// The key lacks the scope of managed keys.
    ScopeRequired = "LEASE_SCOPE_REQUIRED", 403, "The API key has no scope lease:exclusive.";
    /// The key has the scope, but no list of connections.
    KeyConfigurationInvalid = "LEASE_KEY_CONFIGURATION_INVALID", 403, "The API key has the scope lease:exclusive without any allowed connection.";
    /// A managed request without its owner.
    ContextRequired = "LEASE_CONTEXT_REQUIRED", 400, "The header X-OmniRoute-Lease-Owner is missing.";
    /// The owner or the generation is malformed.
    ContextInvalid = "LEASE_CONTEXT_INVALID", 400, "The lease headers are malformed.";
    /// The model resolves to no provider.
    ModelInvalid = "LEASE_MODEL_INVALID", 400, "The model resolves to no provider.";
    /// The model's provider is retired.
    ProviderRetired = "PROVIDER_RETIRED", 410, "The provider of this model is retired.";
    /// The way the request would go can't keep the promise of a lease.
    UnsupportedRoute = "LEASE_UNSUPPORTED_ROUTE", 409, "LEASE UNSUPPORTED ROUTE";
    /// The transport can't carry a leased session.
    UnsupportedTransport = "LEASE_UNSUPPORTED_TRANSPORT", 409, "A leased session can't use this transport.";
    /// The owner has no active lease.
    Required = "LEASE_REQUIRED", 409, "LEASE REQUIRED";
    /// Not the owner's, the key's or the newest lease, or not active any more.
    FenceStale = "LEASE_FENCE_STALE", 409, "LEASE FENCE STALE";
    /// At the dispatch fence: the lease belongs to another API key.
    AuthorizationMismatch = "LEASE_AUTHORIZATION_MISMATCH", 409, "LEASE AUTHORIZATION MISMATCH";
    /// The connection is not the one the lease binds.
    ConnectionMismatch = "LEASE_CONNECTION_MISMATCH", 409, "LEASE CONNECTION MISMATCH";
    /// No connection satisfies the ordinary policy.
    NoEligibleConnection = "LEASE_NO_ELIGIBLE_CONNECTION", 409, "No connection is eligible for this model and API key.";
    /// There are connections, all of them out of use for now.
    EligibilityUnavailable = "LEASE_ELIGIBILITY_UNAVAILABLE", 429, "No connection can be used at the moment.";
    /// Every eligible connection is held by somebody else.
    CapacityUnavailable = "LEASE_CAPACITY_UNAVAILABLE", 429, "Every eligible connection is leased to another session.";
    /// In flight, the lease was lost and the request cut.
    Lost = "LEASE_LOST", 409, "The session lease ended while the request was in flight.";
    /// The store can't confirm anything now.
    ServiceUnavailable = "LEASE_SERVICE_UNAVAILABLE", 503, "Session leases can't be confirmed at the moment.";
}

impl LeaseCode {
    /// `Retry-After` in seconds, where one is sent. Capacity has its own.
    pub const fn retry_after_s(self) -> Option<u64> {
        if matches!(self, Self::ServiceUnavailable) {
            Some(1)
        } else {
            None
        }
    }
}

/// Every eligible connection is held: what the one who waits is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Capacity {
    /// How many connections would have been eligible, at least 1.
    pub eligible: usize,
    /// When asking again makes sense, in seconds, 1-3600.
    pub retry_after_s: u64,
}

/// Why there is no lease to go on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// For this reason.
    Code(LeaseCode),
    /// Somebody else holds every eligible connection.
    Capacity(Capacity),
    /// Nothing about leases: the caller answers with its ordinary routing error.
    Ordinary,
}

impl From<LeaseCode> for Refusal {
    fn from(code: LeaseCode) -> Self {
        Self::Code(code)
    }
}

impl Refusal {
    /// Its code; `None` when the ordinary routing error is the answer.
    pub const fn code(self) -> Option<LeaseCode> {
        match self {
            Self::Code(code) => Some(code),
            Self::Capacity(_) => Some(LeaseCode::CapacityUnavailable),
            Self::Ordinary => None,
        }
    }

    /// `Retry-After` in seconds, where one is sent.
    pub const fn retry_after_s(self) -> Option<u64> {
        match self {
            Self::Code(code) => code.retry_after_s(),
            Self::Capacity(capacity) => Some(capacity.retry_after_s),
            Self::Ordinary => None,
        }
    }

    /// The JSON of the answer; `None` as for [`Refusal::code`].
    pub fn body(self) -> Option<RefusalBody> {
        let code = self.code()?;
        let waits = match self {
            Self::Capacity(capacity) => Some(Waits {
                state: "WAITING_FOR_CAPACITY",
                reason: "NO_FREE_ELIGIBLE_CONNECTION",
                retry_after: capacity.retry_after_s,
                eligible_count: capacity.eligible,
                free_count: 0,
            }),
            Self::Code(_) | Self::Ordinary => None,
        };
        Some(RefusalBody {
            error: ErrorBody {
                message: code.message(),
                kind: ERROR_TYPE,
                code: code.as_str(),
            },
            waits,
        })
    }
}

/// The JSON of a refusal.
#[derive(Clone, Debug, Serialize)]
pub struct RefusalBody {
    error: ErrorBody,
    #[serde(flatten)]
    waits: Option<Waits>,
}

#[derive(Clone, Debug, Serialize)]
struct ErrorBody {
    message: &'static str,
    #[serde(rename = "type")]
    kind: &'static str,
    code: &'static str,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Waits {
    state: &'static str,
    reason: &'static str,
    retry_after: u64,
    eligible_count: usize,
    free_count: usize,
}
