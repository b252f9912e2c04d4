//! Tokens at rest: AES-256-GCM under a key of the operator's.
//!
//! What is sealed is tied to its place (connection, credential, generation), so
//! that a text moved to another place does not open. Nonces are random and come
//! from outside; a key may seal 2^32 texts, which refreshes do not reach.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, UnboundKey};
use secrecy::{ExposeSecret, SecretBox, SecretString};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use super::{Sealed, StoredTokens, Tokens};
use crate::id::ConnectionId;

/// Random bytes for one sealing; never used twice under one key.
pub type Nonce = [u8; NONCE_LEN];

/// The operator's keys: the first seals, every one opens.
pub struct Keyring {
    first: Key,
    others: Vec<Key>,
}

struct Key {
    id: String,
    key: LessSafeKey,
}

/// Where sealed tokens belong.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// Whose tokens.
    pub connection: &'a ConnectionId,
    /// Of which configured credential.
    pub mark: u64,
    /// After how many refreshes.
    pub generation: u64,
}

/// Why tokens can't be sealed or opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// They were sealed under a key that is not listed.
    #[error("they are encrypted with a key that OMNIROUTE_SECRET_KEY does not list")]
    UnknownKey,
    /// The text was changed, cut or moved.
    #[error("they are damaged")]
    Damaged,
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.keys().map(|key| &key.id))
            .finish()
    }
}

impl Keyring {
    /// The keys in their order; `None` without any.
    pub fn new(keys: &[SecretBox<[u8; 32]>]) -> Option<Self> {
        let mut keys = keys.iter().filter_map(Key::new);
        Some(Self {
            first: keys.next()?,
            others: keys.collect(),
        })
    }

    fn keys(&self) -> impl Iterator<Item = &Key> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// Seals tokens for their place.
    pub fn seal(
        &self,
        place: Place<'_>,
        tokens: &Tokens,
        nonce: Nonce,
    ) -> Result<Sealed, SealError> {
        let access = tokens.access.expose_secret().as_bytes();
        let refresh = tokens.refresh.expose_secret().as_bytes();
        let length = u32::try_from(access.len()).map_err(|_| SealError::Damaged)?;
        // With room for all, so that no copy in the clear stays behind.
        let room = access.len().saturating_add(refresh.len());
        let mut text = Zeroizing::new(Vec::with_capacity(room.saturating_add(64)));
        text.extend_from_slice(&length.to_be_bytes());
        text.extend_from_slice(access);
        text.extend_from_slice(refresh);
        let aad = Aad::from(place.bytes());
        let nonce_of = ring::aead::Nonce::assume_unique_for_key(nonce);
        let key = &self.first.key;
        key.seal_in_place_append_tag(nonce_of, aad, &mut *text)
            .map_err(|_| SealError::Damaged)?;
        let mut whole = nonce.to_vec();
        whole.extend_from_slice(&text);
        Ok(Sealed {
            key: self.first.id.clone(),
            text: STANDARD.encode(whole),
        })
    }

    /// Opens what was sealed for this place.
    pub fn open(&self, place: Place<'_>, sealed: &Sealed) -> Result<Tokens, SealError> {
        let mut keys = self.keys();
        let key = keys
            .find(|key| key.id == sealed.key)
            .ok_or(SealError::UnknownKey)?;
        let opened = || -> Option<Tokens> {
            let mut whole = Zeroizing::new(STANDARD.decode(&sealed.text).ok()?);
            let (nonce, text) = whole.split_at_mut_checked(NONCE_LEN)?;
            let nonce = ring::aead::Nonce::try_assume_unique_for_key(nonce).ok()?;
            let aad = Aad::from(place.bytes());
            let clear = key.key.open_in_place(nonce, aad, text).ok()?;
            let (length, rest) = clear.split_first_chunk::<4>()?;
            let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
            let (access, refresh) = rest.split_at_checked(length)?;
            let secret = |bytes| Some(SecretString::from(std::str::from_utf8(bytes).ok()?));
            Some(Tokens {
                access: secret(access)?,
                refresh: secret(refresh)?,
            })
        };
        opened().ok_or(SealError::Damaged)
    }

    /// The same lines, those under another key than the first sealed anew where
    /// they can be opened and there is a nonce for it.
    #[must_use]
    pub fn renewed(
        &self,
        connection: &ConnectionId,
        stored: &StoredTokens,
        nonce: &mut dyn FnMut() -> Option<Nonce>,
    ) -> StoredTokens {
        let mut renewed = stored.clone();
        for line in &mut renewed.lines {
            if line.sealed.key == self.first.id {
                continue;
            }
            let place = Place {
                connection,
                mark: line.mark,
                generation: line.status.generation,
            };
            if let Ok(tokens) = self.open(place, &line.sealed)
                && let Some(nonce) = nonce()
                && let Ok(sealed) = self.seal(place, &tokens, nonce)
            {
                line.sealed = sealed;
            }
        }
        renewed
    }
}

impl Key {
    fn new(key: &SecretBox<[u8; 32]>) -> Option<Self> {
        let bytes = key.expose_secret();
        let mut hash = Sha256::new();
        hash.update(b"omniroute secret key\0");
        hash.update(bytes);
        let digest: [u8; 32] = hash.finalize().into();
        let id = digest.iter().take(8).map(|byte| format!("{byte:02x}"));
        Some(Self {
            id: id.collect(),
            key: LessSafeKey::new(UnboundKey::new(&AES_256_GCM, bytes).ok()?),
        })
    }
}

impl Place<'_> {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"omniroute tokens 1\0".to_vec();
        bytes.extend_from_slice(self.connection.as_str().as_bytes());
        bytes.push(0);
        bytes.extend_from_slice(&self.mark.to_be_bytes());
        bytes.extend_from_slice(&self.generation.to_be_bytes());
        bytes
    }
}
