//! What an answer's headers say of the wall.

use crate::clock::Millis;

/// Bounds of the wait that the upstream asks for, ms.
const RETRY_AFTER_MS: (u64, u64) = (5_000, 600_000);
/// Bounds of the longest wait that it allows, ms.
const MAX_WAIT_MS: (u64, u64) = (60_000, 21_600_000);

/// What one answer said. What is missing, malformed or unknown is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signs {
    /// HTTP status.
    pub status: u16,
    /// The account's limit refused it.
    pub rejected: bool,
    /// What is offered at the wall.
    pub offer: Option<Offer>,
    /// What became of a request on the lane.
    pub slow: Option<SlowStatus>,
    /// When the limit that speaks ends.
    pub resets_at: Option<Millis>,
    /// When the five-hour window ends.
    pub five_hour_reset: Option<Millis>,
    /// When the weekly window ends.
    pub seven_day_reset: Option<Millis>,
    /// When the lane's budget begins anew.
    pub budget_reset: Option<Millis>,
    /// Wait that is asked for on the lane, ms, within its bounds.
    pub retry_after_ms: Option<u64>,
    /// Longest wait on the lane, ms, within its bounds.
    pub max_wait_ms: Option<u64>,
    /// Whose limit it is: whether that of five hours.
    pub claim: Option<bool>,
    /// Something is said of paid usage.
    pub overage_status: bool,
    /// Paid usage is in use.
    pub overage_in_use: bool,
}

/// What is offered at the wall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// The lane.
    Treatment,
    /// Nothing, to compare.
    Control,
}

/// What became of a request on the lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlowStatus {
    /// Served on the lane.
    Active,
    /// Served without need of it.
    NotNeeded,
    /// Its slots are taken.
    SlotBusy,
    /// The weekly limit is reached.
    WeeklyLimit,
    /// Its budget is spent.
    BudgetExhausted,
    /// It is switched off.
    Off,
    /// The account may not use it.
    Ineligible,
}

impl SlowStatus {
    fn parse(word: &str) -> Option<Self> {
        Some(match word {
            "active" => Self::Active,
            "not_needed" => Self::NotNeeded,
            "slot_busy" => Self::SlotBusy,
            "weekly_limit" => Self::WeeklyLimit,
            "budget_exhausted" => Self::BudgetExhausted,
            "off" => Self::Off,
            "ineligible" => Self::Ineligible,
            _ => return None,
        })
    }

    /// Whether a refusal with it ends the lane.
    pub const fn ends(self) -> bool {
        matches!(
            self,
            Self::WeeklyLimit | Self::BudgetExhausted | Self::Off | Self::Ineligible
        )
    }
}

impl Signs {
    /// Reads an answer of `status`; `header` gives the value of what follows
    /// `anthropic-ratelimit-unified-` in a header's name.
    pub fn read<'h>(status: u16, header: impl Fn(&str) -> Option<&'h str>) -> Self {
        let word = |name: &str| {
            let text = header(name)?.trim().to_ascii_lowercase();
            (!text.is_empty()).then_some(text)
        };
        let ms = |name: &str| header(name).and_then(seconds);
        let at = |name: &str| ms(name).map(Millis::from_epoch_ms);
        let within =
            |name: &str, (least, most): (u64, u64)| ms(name).map(|ms| ms.clamp(least, most));
        Self {
            status,
            rejected: word("status").as_deref() == Some("rejected"),
            offer: match word("slow-offer").as_deref() {
                Some("treatment") => Some(Offer::Treatment),
                Some("control") => Some(Offer::Control),
                _ => None,
            },
            slow: word("slow-status").as_deref().and_then(SlowStatus::parse),
            resets_at: at("reset"),
            five_hour_reset: at("5h-reset"),
            seven_day_reset: at("7d-reset"),
            budget_reset: at("slow-budget-reset"),
            retry_after_ms: within("slow-retry-after", RETRY_AFTER_MS),
            max_wait_ms: within("slow-max-wait", MAX_WAIT_MS),
            claim: word("representative-claim").map(|claim| claim == "five_hour"),
            overage_status: word("overage-status").is_some(),
            overage_in_use: word("overage-in-use").as_deref() == Some("true"),
        }
    }

    /// Whether the account stands at its wall.
    pub const fn at_wall(&self) -> bool {
        self.rejected || self.offer.is_some()
    }

    /// Whether it is a 429 for that.
    pub const fn is_refusal_at_the_wall(&self) -> bool {
        self.status == 429 && self.at_wall()
    }

    /// Whether a reset of the five-hour limit may help.
    pub fn may_be_reset(&self) -> bool {
        self.is_refusal_at_the_wall() && self.claim.unwrap_or(true)
    }
}

/// Seconds, with a fraction or without, as ms. Neither negative nor in any other notation.
fn seconds(text: &str) -> Option<u64> {
    let text = text.trim();
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(fraction) {
        return None;
    }
    let thousandths: String = fraction.chars().chain("00".chars()).take(3).collect();
    let whole: u64 = whole.parse().ok()?;
    let ms: u64 = thousandths.parse().ok()?;
    Some(whole.saturating_mul(1000).saturating_add(ms))
}
