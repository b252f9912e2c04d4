//! Tests of tokens: sealing, grants, judgement, and many nodes over one store.

mod grant;
mod judge;
mod nodes;
mod seal;

use secrecy::SecretBox;

use super::{Keyring, Line, Nonce, Place, Sealed, Status, Tokens};
use crate::clock::Millis;
use crate::id::ConnectionId;

const fn at(ms: u64) -> Millis {
    Millis::from_epoch_ms(ms)
}

fn keyring(firsts: &[u8]) -> Keyring {
    let keys: Vec<_> = firsts
        .iter()
        .map(|first| SecretBox::new(Box::new([*first; 32])))
        .collect();
    Keyring::new(&keys).unwrap()
}

fn tokens(access: &str, refresh: &str) -> Tokens {
    Tokens {
        access: access.into(),
        refresh: refresh.into(),
    }
}

fn sealed(keys: &Keyring, place: Place<'_>, tokens: &Tokens, nonce: u8) -> Sealed {
    let nonce: Nonce = [nonce; 12];
    keys.seal(place, tokens, nonce).unwrap()
}

fn line(mark: u64, generation: u64, written_at: u64) -> Line {
    Line {
        mark,
        status: Status {
            generation,
            ..Status::default()
        },
        sealed: Sealed {
            key: String::new(),
            text: String::new(),
        },
        written_at: at(written_at),
    }
}

fn acme() -> ConnectionId {
    ConnectionId::from("acme-1")
}
