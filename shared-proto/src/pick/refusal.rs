//! What is said when no target is left: the status, when to come back, and the
//! explanation that goes along with it.
//!
//! The explanation is a projection: only the fields named here, each cut to its
//! bound, so nothing else of a request or an account can leak through it.

use serde::Serialize;

use crate::id::ProviderId;
use crate::pick::exclusion::{Exclusion, ExclusionReason};

/// Excluded targets and attempts listed in an explanation.
pub const MAX_LISTED: usize = 64;

/// Characters of the header that lists the excluded targets.
pub const MAX_EXCLUDED_HEADER: usize = 900;

const MAX_PROVIDER: usize = 64;
const MAX_MODEL: usize = 96;
const MAX_NEXT_STEP: usize = 200;
const MAX_NEXT_STEP_HEADER: usize = 128;
const MAX_HINT_SECONDS: u64 = 3_600;

/// Why a request ends without an answer of an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TerminalReason {
    /// Every target is excluded, at least one by a timer.
    AllTargetsCoolingDown,
    /// Every target is excluded, none by a timer.
    NoExecutableTargets,
    /// Every account is switched off or terminal.
    AllAccountsInactive,
    /// What was tried answered that its quota is used up.
    QuotaExhausted,
    /// Every target was tried and failed.
    AllModelsFailed,
    /// The attempts of one request are used up.
    MaxAttemptsExceeded,
    /// An attempt ended without any answer.
    NoUpstreamResponse,
}

impl TerminalReason {
    /// The word used in JSON, headers and metric labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AllTargetsCoolingDown => "all_targets_cooling_down",
            Self::NoExecutableTargets => "no_executable_targets",
            Self::AllAccountsInactive => "all_accounts_inactive",
            Self::QuotaExhausted => "quota_exhausted",
            Self::AllModelsFailed => "all_models_failed",
            Self::MaxAttemptsExceeded => "max_attempts_exceeded",
            Self::NoUpstreamResponse => "no_upstream_response",
        }
    }

    /// What the client may do.
    pub const fn action(self) -> RecoveryAction {
        match self {
            Self::AllTargetsCoolingDown => RecoveryAction::Wait,
            Self::NoExecutableTargets | Self::AllAccountsInactive | Self::QuotaExhausted => {
                RecoveryAction::SwitchCombo
            }
            Self::AllModelsFailed | Self::MaxAttemptsExceeded => RecoveryAction::TryAuto,
            Self::NoUpstreamResponse => RecoveryAction::Retry,
        }
    }

    const fn next_step(self) -> &'static str {
        match self {
            Self::AllTargetsCoolingDown => {
                "wait until the first target is back, then send the request again"
            }
            Self::NoExecutableTargets => {
                "name another model or combo: none of these targets can serve the request"
            }
            Self::AllAccountsInactive => {
                "name another model or combo, or have an operator bring the accounts back"
            }
            Self::QuotaExhausted => "name another model or combo: the quota here is used up",
            Self::AllModelsFailed | Self::MaxAttemptsExceeded => {
                "let the router choose the model, or send the request again later"
            }
            Self::NoUpstreamResponse => "send the request again",
        }
    }
}

/// What the client may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecoveryAction {
    /// Let the router choose.
    TryAuto,
    /// Come back later.
    Wait,
    /// Send it again.
    Retry,
    /// Name another model or combo.
    SwitchCombo,
}

impl RecoveryAction {
    /// The word used in JSON and headers.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TryAuto => "try-auto",
            Self::Wait => "wait",
            Self::Retry => "retry",
            Self::SwitchCombo => "switch-combo",
        }
    }
}

/// The `recovery_hint` of an error body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RecoveryHint {
    /// What the client may do.
    pub action: RecoveryAction,
    /// The same in words, at most 200 characters, never blank.
    pub next_step: String,
    /// When, in seconds, at most 3600.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_seconds: Option<u64>,
}

impl RecoveryHint {
    /// The hint for `reason`.
    pub fn new(reason: TerminalReason, retry_after_seconds: Option<u64>) -> Self {
        Self::in_words(reason.action(), reason.next_step(), retry_after_seconds)
    }

    /// A hint in the caller's words, cut to its bounds; blank words are replaced by the action's.
    pub fn in_words(action: RecoveryAction, words: &str, retry_after_seconds: Option<u64>) -> Self {
        let words = words.trim();
        let words = if words.is_empty() {
            action.as_str()
        } else {
            words
        };
        Self {
            action,
            next_step: cut(words, MAX_NEXT_STEP),
            retry_after_seconds: retry_after_seconds.map(|s| s.min(MAX_HINT_SECONDS)),
        }
    }
}

/// The `diagnostics` of an error body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Diagnostics {
    /// Targets there were.
    pub pool_size: usize,
    /// Attempts made.
    pub attempted: usize,
    /// Targets not tried, at most [`MAX_LISTED`].
    pub excluded: Vec<ListedExclusion>,
    /// Attempts in order, at most [`MAX_LISTED`].
    pub attempt_order: Vec<ListedTarget>,
    /// Why it ended.
    pub terminal_reason: &'static str,
    /// What the client may do.
    pub recovery: RecoveryAction,
}

/// A target in an explanation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListedTarget {
    /// At most 64 characters.
    pub provider: String,
    /// At most 96 characters.
    pub model: String,
}

impl ListedTarget {
    /// The target by its names, cut to their bounds.
    pub fn new(provider: &ProviderId, model: &str) -> Self {
        Self {
            provider: cut(provider.as_str(), MAX_PROVIDER),
            model: cut(model, MAX_MODEL),
        }
    }
}

/// An excluded target in an explanation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListedExclusion {
    /// Which one.
    #[serde(flatten)]
    pub target: ListedTarget,
    /// Why.
    pub reason: ExclusionReason,
}

/// What the pool looked like when the request ended.
#[derive(Clone, Copy, Debug)]
pub struct Pool<'a> {
    /// Targets there were.
    pub size: usize,
    /// Attempts in order.
    pub attempts: &'a [ListedTarget],
    /// Targets not tried, and why.
    pub exclusions: &'a [Exclusion],
}

/// Diagnostics and hint together, for bodies and headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// What happened.
    pub diagnostics: Diagnostics,
    /// What to do about it.
    pub recovery_hint: RecoveryHint,
}

impl Explanation {
    /// Explains why a request over `pool` ended. `retry_after_seconds` is the
    /// true waiting time; the hint's is bounded.
    pub fn new(pool: Pool<'_>, reason: TerminalReason, retry_after_seconds: Option<u64>) -> Self {
        let listed = |exclusion: &Exclusion| ListedExclusion {
            target: ListedTarget::new(&exclusion.provider, &exclusion.model),
            reason: exclusion.reason,
        };
        let exclusions = pool.exclusions.iter().take(MAX_LISTED);
        Self {
            diagnostics: Diagnostics {
                pool_size: pool.size,
                attempted: pool.attempts.len(),
                excluded: exclusions.map(listed).collect(),
                attempt_order: pool.attempts.iter().take(MAX_LISTED).cloned().collect(),
                terminal_reason: reason.as_str(),
                recovery: reason.action(),
            },
            recovery_hint: RecoveryHint::new(reason, retry_after_seconds),
        }
    }

    /// The response headers that carry it. Values are printable ASCII.
    pub fn headers(&self) -> Vec<(&'static str, String)> {
        let diagnostics = &self.diagnostics;
        let hint = &self.recovery_hint;
        let mut headers = vec![
            (
                "x-omniroute-combo-pool-size",
                diagnostics.pool_size.to_string(),
            ),
            (
                "x-omniroute-combo-attempted",
                diagnostics.attempted.to_string(),
            ),
            (
                "x-omniroute-combo-terminal-reason",
                diagnostics.terminal_reason.to_owned(),
            ),
            (
                "x-omniroute-recovery-action",
                hint.action.as_str().to_owned(),
            ),
            (
                "x-omniroute-recovery-next-step",
                cut(&ascii(&hint.next_step), MAX_NEXT_STEP_HEADER),
            ),
        ];
        let excluded = excluded_header(&diagnostics.excluded);
        if !excluded.is_empty() {
            headers.push(("x-omniroute-combo-excluded", excluded));
        }
        if let Some(seconds) = hint.retry_after_seconds.filter(|seconds| *seconds > 0) {
            headers.push(("x-omniroute-retry-after-seconds", seconds.to_string()));
        }
        headers
    }
}

/// The router's own answer when no target could be tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// 503 when a timer will end it, else 404.
    pub status: u16,
    /// `error.type`.
    pub error_type: &'static str,
    /// `error.code`.
    pub code: &'static str,
    /// `Retry-After` in seconds; absent when no timer's end is known.
    pub retry_after_seconds: Option<u64>,
    /// What goes along with it.
    pub explanation: Explanation,
}

impl Refusal {
    /// The answer when nothing of `pool` could be tried: as soon as one
    /// exclusion is a timer, waiting helps. The whole list is named either way.
    pub fn none_left(pool: Pool<'_>) -> Self {
        let timers = || pool.exclusions.iter().filter(|e| e.reason.is_timer());
        if timers().next().is_none() {
            let reason = TerminalReason::NoExecutableTargets;
            return Self {
                status: 404,
                error_type: "not_found_error",
                code: reason.as_str(),
                retry_after_seconds: None,
                explanation: Explanation::new(pool, reason, None),
            };
        }
        let first_back_ms = timers().filter_map(|e| e.remaining_ms).min();
        let retry_after_seconds = first_back_ms.map(retry_after_seconds);
        let reason = TerminalReason::AllTargetsCoolingDown;
        Self {
            status: 503,
            error_type: "service_unavailable",
            code: reason.as_str(),
            retry_after_seconds,
            explanation: Explanation::new(pool, reason, retry_after_seconds),
        }
    }
}

/// A remaining time as `Retry-After` says it: whole seconds, rounded up, at least 1.
pub fn retry_after_seconds(remaining_ms: u64) -> u64 {
    remaining_ms.div_ceil(1_000).max(1)
}

/// `provider/model:reason` in a comma list, whole entries only.
fn excluded_header(excluded: &[ListedExclusion]) -> String {
    let mut header = String::new();
    for exclusion in excluded {
        let target = &exclusion.target;
        let reason = exclusion.reason.as_str();
        let entry = format!(
            "{}/{}:{reason}",
            name(&target.provider),
            name(&target.model)
        );
        let comma = usize::from(!header.is_empty());
        let length = header.len().saturating_add(comma);
        if length.saturating_add(entry.len()) > MAX_EXCLUDED_HEADER {
            break;
        }
        if comma == 1 {
            header.push(',');
        }
        header.push_str(&entry);
    }
    header
}

/// A name in a comma list.
fn name(text: &str) -> String {
    ascii(text).replace([',', ' '], "_")
}

fn ascii(text: &str) -> String {
    let printable = |c: char| c == ' ' || c.is_ascii_graphic();
    text.chars()
        .map(|c| if printable(c) { c } else { '?' })
        .collect()
}

fn cut(text: &str, chars: usize) -> String {
    text.chars().take(chars).collect()
}
