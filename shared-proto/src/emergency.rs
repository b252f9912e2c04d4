//! Whether money is the reason that a request was refused.

use crate::asked::{self, Asked};

/// What refusals for money say; accents are left out.
const PHRASES: [&str; 15] = [
    "insufficient funds",
    "budget exceeded",
    "quota exceeded",
    "billing",
    "payment required",
    "out of credits",
    "no credits",
    "credit limit",
    "spending limit",
    "saldo insuficiente",
    "fondos insuficientes",
    "creditos insuficientes",
    "insufficient_funds",
    "budget_exceeded",
    "quota_exceeded",
];

/// Whether a refusal of `status` that says `text` is about money. What the client
/// wrote itself says nothing.
pub fn is_about_money(status: u16, text: &str, asked: &Asked<'_>) -> bool {
    let text: String = text.to_lowercase().chars().map(asked::plain).collect();
    let mut phrases = PHRASES.iter();
    status == 402 || phrases.any(|phrase| text.contains(phrase) && !asked.says(phrase))
}

#[cfg(test)]
mod tests {
    use super::{Asked, PHRASES};

    fn is_about_money(status: u16, text: &str) -> bool {
        super::is_about_money(status, text, &Asked::new(b"", []))
    }

    #[test]
    fn statuses_and_phrases() {
        assert!(is_about_money(402, ""), "EF-01");
        assert!(!is_about_money(500, "internal error"), "EF-05");
        assert!(!is_about_money(429, "slow down"));
        for phrase in PHRASES {
            let said = format!("Sorry: {}!", phrase.to_uppercase());
            assert!(is_about_money(400, &said), "{said}");
        }
        assert!(is_about_money(403, "CRÉDITOS insuficientes"));
    }

    #[test]
    fn what_the_client_wrote_says_nothing() {
        for phrase in PHRASES {
            let body = format!("{{\"role\":\"{phrase}\"}}");
            let asked = Asked::new(body.as_bytes(), []);
            let text = format!("unknown field '{phrase}'");
            assert!(!super::is_about_money(400, &text, &asked), "{phrase}");
            assert!(super::is_about_money(402, &text, &asked), "{phrase}");
        }
    }
}
