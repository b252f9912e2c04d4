//! What reading a refusal costs: below 20 microseconds for a body of 4 KiB, and
//! in proportion to the body up to what is looked at (64 KiB).
//!
//! `cargo bench -p shared-proto --bench classify`

use divan::Bencher;
use divan::counter::BytesCount;
use shared_proto::classify::{ClassifyRules, UpstreamError, classify};
use shared_proto::clock::Millis;
use shared_proto::config::{Reading, Settings};
use shared_proto::failure::Profile;
use shared_proto::hint::Answer;

const SIZES: [usize; 4] = [1 << 10, 4 << 10, 16 << 10, 64 << 10];
const WORDS: &str = "the request could not be completed because the organization has too many \
    open sessions and the service is busy at the moment ";
/// Parts of many patterns that never fit.
const BAIT: &str = "model access permission context exceed quota file not found reset in ";

fn main() {
    divan::main();
}

/// A message in JSON.
#[divan::bench(args = SIZES)]
fn json(bencher: Bencher<'_, '_>, bytes: usize) {
    let text: String = WORDS
        .chars()
        .cycle()
        .take(bytes.saturating_sub(60))
        .collect();
    let body = serde_json::json!({"error": {"message": text, "type": "x", "code": "y"}});
    read(bencher, &body.to_string());
}

/// A plain text.
#[divan::bench(args = SIZES)]
fn text(bencher: Bencher<'_, '_>, bytes: usize) {
    let body: String = WORDS.chars().cycle().take(bytes).collect();
    read(bencher, &body);
}

/// The worst of texts.
#[divan::bench(args = SIZES)]
fn bait(bencher: Bencher<'_, '_>, bytes: usize) {
    let body: String = BAIT.chars().cycle().take(bytes).collect();
    read(bencher, &body);
}

fn read(bencher: Bencher<'_, '_>, body: &str) {
    let settings = Settings::default();
    let rules = ClassifyRules {
        hint_bounds: &settings.hint_bounds,
        custom_banned_signals: &[],
        provider_rules: &[],
        restate: &settings.restate_rules,
    };
    let headers = [
        ("content-type".to_owned(), "application/json".to_owned()),
        ("retry-after".to_owned(), "30".to_owned()),
    ];
    let now = Millis::from_epoch_ms(1_790_856_000_000);
    bencher.counter(BytesCount::new(body.len())).bench(|| {
        let error = UpstreamError {
            answer: Answer {
                provider: "acme",
                status: 429,
                headers: &headers,
                body: body.as_bytes(),
            },
            profile: Profile::ApiKey,
            per_model_quota: false,
            reading: Reading::default(),
            daily_reset: None,
            model: Some("some-model"),
            in_stream: false,
            asked: None,
        };
        classify(&error, &rules, now)
    });
}
