//! Whether money is the reason that a request was refused.

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

/// Whether a refusal of `status` that says `text` is about money.
pub fn is_about_money(status: u16, text: &str) -> bool {
    let plain = |c: char| match c {
        'á' | 'â' | 'ã' => 'a',
        'é' | 'ê' => 'e',
        'í' => 'i',
        'ó' | 'ô' | 'õ' => 'o',
        'ú' => 'u',
        'ç' => 'c',
        other => other,
    };
    let text: String = text.to_lowercase().chars().map(plain).collect();
    status == 402 || PHRASES.iter().any(|phrase| text.contains(phrase))
}

#[cfg(test)]
mod tests {
    use super::{PHRASES, is_about_money};

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
}
