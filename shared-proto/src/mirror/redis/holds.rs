//! Holders of pools.

use std::collections::{BTreeMap, HashMap};

use super::fault::Fault;
use super::link::{Call, Shared};
use super::reply::Answer;
use crate::clock::Millis;
use crate::mirror::Unreachable;
use crate::mirror::hold::{
    Held, HoldError, Holder, MAX_HOLDERS, Place, Pool, Take, Taken, check_places,
};
use crate::mirror::key::PoolPart;

/// Holders read at a time.
const PAGE: usize = 256;
/// All of a pool's sets.
const PARTS: [PoolPart; 4] = [
    PoolPart::Held,
    PoolPart::Queue,
    PoolPart::Patience,
    PoolPart::Notes,
];

pub(super) async fn take(shared: &Shared, take: Take) -> Result<Taken, HoldError> {
    take.check()?;
    let mut keys = Vec::from(PARTS.map(|part| shared.keys.pool(&take.pool, part)));
    let mut args = vec![
        take.holder.0.as_bytes().to_vec(),
        take.limit.map(text).unwrap_or_default(),
        text(take.ttl_ms.min(MAX_MS)),
        take.patience_ms
            .map(|ms| text(ms.min(MAX_MS)))
            .unwrap_or_default(),
        take.note.to_vec(),
        text(MAX_HOLDERS),
    ];
    if let Some(guard) = &take.guard {
        keys.push(shared.keys.spell(&guard.key));
        args.push(text(guard.revision));
    }
    let call = Call {
        lua: &shared.scripts.take,
        keys,
        args,
        writes: true,
    };
    let (answer, at) = shared.call(&call).await?;
    match taken(shared, &take, answer, at).map_err(Unreachable::from)? {
        Some(taken) => Ok(taken),
        None => Err(HoldError::Refused("the pool has too many holders")),
    }
}

/// What the answer says; `None` is too many holders.
fn taken(
    shared: &Shared,
    take: &Take,
    mut answer: Answer,
    at: Millis,
) -> Result<Option<Taken>, Fault> {
    Ok(Some(match (answer.number()?, &take.guard) {
        (0, _) => Taken::Full {
            ahead: u32::try_from(answer.number()?).unwrap_or(u32::MAX),
        },
        (1, _) => Taken::Held {
            until: Millis::from_epoch_ms(answer.number()?),
        },
        (2, Some(guard)) => {
            let spelled = shared.keys.spell(&guard.key);
            let stored = answer.record(&guard.key, &spelled)?;
            Taken::Fenced {
                newest: stored.and_then(Result::ok),
                at,
            }
        }
        (3, _) => return Ok(None),
        _ => return Err(Fault::odd()),
    }))
}

pub(super) async fn keep(
    shared: &Shared,
    places: Vec<Place>,
    ttl_ms: u64,
) -> Result<Vec<bool>, HoldError> {
    let parts = [PoolPart::Held, PoolPart::Notes];
    let (keys, mut args) = batch(shared, &places, &parts)?;
    if places.is_empty() {
        return Ok(Vec::new());
    }
    args.insert(0, text(ttl_ms.min(MAX_MS)));
    let call = Call {
        lua: &shared.scripts.keep,
        keys,
        args,
        writes: false,
    };
    let (mut answer, _) = shared.call(&call).await?;
    let kept = places.iter().map(|_| answer.number().map(|held| held == 1));
    let kept: Result<_, Fault> = kept.collect();
    Ok(kept.map_err(Unreachable::from)?)
}

pub(super) async fn give_back(shared: &Shared, places: Vec<Place>) -> Result<(), HoldError> {
    let (keys, args) = batch(shared, &places, &PARTS)?;
    if places.is_empty() {
        return Ok(());
    }
    let call = Call {
        lua: &shared.scripts.give_back,
        keys,
        args,
        writes: false,
    };
    shared.call(&call).await?;
    Ok(())
}

/// The keys of every pool that is named, once, and each place as its pool's
/// number and holder.
fn batch(
    shared: &Shared,
    places: &[Place],
    parts: &[PoolPart],
) -> Result<(Vec<String>, Vec<Vec<u8>>), HoldError> {
    check_places(places)?;
    let mut numbers: HashMap<&Pool, usize> = HashMap::new();
    let (mut keys, mut args) = (Vec::new(), Vec::new());
    for place in places {
        let next = numbers.len().saturating_add(1);
        let number = *numbers.entry(&place.pool).or_insert_with(|| {
            keys.extend(
                parts
                    .iter()
                    .map(|part| shared.keys.pool(&place.pool, *part)),
            );
            next
        });
        args.push(text(number));
        args.push(place.holder.0.as_bytes().to_vec());
    }
    Ok((keys, args))
}

pub(super) async fn holders(shared: &Shared, pool: &Pool) -> Result<Vec<Held>, HoldError> {
    let mut found = BTreeMap::new();
    let mut cursor = b"0".to_vec();
    loop {
        let call = Call {
            lua: &shared.scripts.holders,
            keys: vec![
                shared.keys.pool(pool, PoolPart::Held),
                shared.keys.pool(pool, PoolPart::Notes),
            ],
            args: vec![cursor, text(PAGE)],
            writes: false,
        };
        let (mut page, _) = shared.call(&call).await?;
        cursor = page.bytes().map_err(Unreachable::from)?;
        while page.len() > 0 {
            let held = held(&mut page).map_err(Unreachable::from)?;
            found.insert(held.holder.clone(), held);
        }
        if cursor == b"0" {
            return Ok(found.into_values().collect());
        }
        if found.len() > MAX_HOLDERS.saturating_mul(2) {
            return Err(Unreachable("the pool has too many holders".into()).into());
        }
    }
}

fn held(page: &mut Answer) -> Result<Held, Fault> {
    Ok(Held {
        holder: Holder(String::from_utf8_lossy(&page.bytes()?).into()),
        until: Millis::from_epoch_ms(page.number()?),
        note: page.bytes()?.into(),
    })
}

/// Longest time that is asked for, in ms: the scripts count exactly up to it.
const MAX_MS: u64 = 1 << 42;

#[expect(
    clippy::needless_pass_by_value,
    reason = "numbers, for which a reference says nothing"
)]
fn text(number: impl ToString) -> Vec<u8> {
    number.to_string().into_bytes()
}
