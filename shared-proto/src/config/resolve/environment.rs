//! Variables that belong to no part of the file.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use secrecy::{ExposeSecretMut, SecretBox};
use zeroize::Zeroizing;

use crate::id::NodeId;
use crate::token::Keyring;

use super::super::report::Origin;
use super::{Context, ID};

/// Variables of features that this version does not have yet.
const IDLE: [&str; 12] = [
    "RATE_LIMIT_MAX_WAIT_MS",
    "RATE_LIMIT_EXECUTION_MAX_WAIT_MS",
    "RATE_LIMIT_MAX_QUEUE_DEPTH",
    "STREAM_RECOVERY_ENABLED",
    "STREAM_RECOVERY_MIDSTREAM_ENABLED",
    "STREAM_RECOVERY_TOOLCALL_ORDER_FIX",
    "STREAM_THROUGHPUT_WATCHDOG_ENABLED",
    "STREAM_THROUGHPUT_WATCHDOG_WARMUP_MS",
    "STREAM_THROUGHPUT_WATCHDOG_WINDOW_MS",
    "STREAM_THROUGHPUT_WATCHDOG_MIN_BYTES_PER_SECOND",
    "STREAM_THROUGHPUT_WATCHDOG_MIN_USEFUL_BYTES",
    "REQUIRE_API_KEY",
];

/// Warns of variables that are set and do nothing yet.
pub(super) fn warn_of_idle(context: &mut Context<'_, '_>) {
    for name in IDLE {
        if context.variable(name).is_some() {
            let message = "set, but this version does not act on it yet";
            context.report.warn_outside(Origin::Variable(name), message);
        }
    }
}

/// `OMNIROUTE_NODE_ID`
pub(super) fn node_id(context: &mut Context<'_, '_>) -> Option<NodeId> {
    let name = "OMNIROUTE_NODE_ID";
    let value = context.variable(name)?;
    let value = value.trim();
    if !ID.fits(value) {
        context
            .report
            .outside(Origin::Variable(name), ID.in_words());
        return None;
    }
    Some(NodeId::from(value))
}

/// Most keys that are listed.
const MAX_KEYS: usize = 16;

/// `OMNIROUTE_SECRET_KEY`: 32 bytes in base64, of either alphabet; or several,
/// parted by commas or spaces.
pub(super) fn secret_keys(context: &mut Context<'_, '_>) -> Option<Arc<Keyring>> {
    let name = "OMNIROUTE_SECRET_KEY";
    let value = Zeroizing::new(context.variable(name)?);
    let parted = value.split(|c: char| c == ',' || c.is_whitespace());
    let keys: Vec<_> = parted
        .filter(|text| !text.is_empty())
        .take(MAX_KEYS)
        .map(secret_key)
        .collect();
    if keys.iter().any(Option::is_none) {
        let message = "takes 32 bytes in base64, such as `openssl rand -base64 32` prints; \
                       several are parted by commas, and the first encrypts";
        context.report.outside(Origin::Variable(name), message);
        return None;
    }
    let keys: Vec<_> = keys.into_iter().flatten().collect();
    Keyring::new(&keys).map(Arc::new)
}

fn secret_key(text: &str) -> Option<SecretBox<[u8; 32]>> {
    let plain = text.chars().map(|c| match c {
        '-' => '+',
        '_' => '/',
        other => other,
    });
    let plain = Zeroizing::new(plain.collect::<String>());
    let config =
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    let engine = GeneralPurpose::new(&base64::alphabet::STANDARD, config);
    let bytes = Zeroizing::new(engine.decode(plain.as_bytes()).ok()?);
    let mut key = SecretBox::new(Box::new([0_u8; 32]));
    if bytes.len() != key.expose_secret_mut().len() {
        return None;
    }
    key.expose_secret_mut().copy_from_slice(&bytes);
    Some(key)
}
