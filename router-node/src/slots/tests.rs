//! Slots by the store, by this node's share, and back again.

use std::sync::Arc;

use shared_proto::mirror::Mirror;
use shared_proto::mirror::hold::{Place, Pool};

use super::{Asked, Limit, Slots, Ticket};
use crate::absent::{Absent, eventually};
use crate::observe::SlotMetrics;
use crate::routing::ConnectionCell;

const LIMIT: Limit = Limit { cap: 2, nodes: 2 };

fn pool() -> Pool {
    Pool::Slots("a".into())
}

fn slots(store: &Arc<Absent>) -> Slots {
    let mirror: Arc<dyn Mirror> = Arc::<Absent>::clone(store);
    Slots::start(&mirror, SlotMetrics::default())
}

fn ticket(slots: &Slots, name: &str) -> Ticket {
    Ticket {
        place: Place {
            pool: pool(),
            holder: shared_proto::mirror::hold::Holder(name.into()),
        },
        cell: Arc::new(ConnectionCell::default()),
        porter: slots.porter.clone(),
        asked: false,
    }
}

async fn ask(slots: &Slots, name: &str) -> (Ticket, Asked) {
    let mut ticket = ticket(slots, name);
    let asked = slots.ask(&mut ticket, LIMIT, None).await;
    (ticket, asked)
}

async fn held(store: &Absent) -> usize {
    store.holders(&pool()).await.unwrap().len()
}

#[test]
fn a_share_is_at_least_one() {
    for (cap, nodes, share) in [(4, 2, 2), (5, 2, 2), (1, 3, 1), (7, 1, 7), (3, 0, 3)] {
        assert_eq!(Limit { cap, nodes }.share(), share);
    }
}

#[actix::test]
async fn a_slot_is_held_until_its_ticket_is_gone() {
    let store = Absent::new();
    let slots = slots(&store);
    let (first, asked) = ask(&slots, "first").await;
    assert_eq!(asked, Asked::Held);
    let (_second, asked) = ask(&slots, "second").await;
    assert_eq!(asked, Asked::Held);
    let (third, asked) = ask(&slots, "third").await;
    assert_eq!(asked, Asked::Full { ahead: 0 });
    drop(third);
    let freed = Arc::clone(&first.cell);
    let freed = freed.next_freed();
    drop(first);
    freed.await;
    assert_eq!(held(&store).await, 1);
    let (_fourth, asked) = ask(&slots, "fourth").await;
    assert_eq!(asked, Asked::Held);
    eventually(async || slots.metrics.held.get() == 2).await;
}

#[actix::test]
async fn a_ticket_that_waits_keeps_its_turn_and_gives_it_up() {
    let store = Absent::new();
    let slots = slots(&store);
    let (first, _) = ask(&slots, "first").await;
    let (_second, _) = ask(&slots, "second").await;
    let mut waiter = ticket(&slots, "waiter");
    let asked = slots.ask(&mut waiter, LIMIT, Some(3_000)).await;
    assert_eq!(asked, Asked::Full { ahead: 0 });
    drop(first);
    eventually(async || held(&store).await == 1).await;
    let (late, asked) = ask(&slots, "late").await;
    assert_eq!(asked, Asked::Full { ahead: 1 });
    drop(late);
    drop(waiter);
    eventually(async || ask(&slots, "later").await.1 == Asked::Held).await;
}

#[actix::test]
async fn while_the_store_is_away_a_node_keeps_to_its_share_and_tells_later() {
    let store = Absent::new();
    let slots = slots(&store);
    let (first, asked) = ask(&slots, "first").await;
    assert_eq!(asked, Asked::Held);
    store.set_away(true);
    // What it holds by the store counts towards the share.
    let (second, asked) = ask(&slots, "second").await;
    assert_eq!(asked, Asked::Full { ahead: 0 });
    drop((first, second));
    let mut third = ticket(&slots, "third");
    let asked = slots.ask(&mut third, LIMIT, None).await;
    assert_eq!(asked, Asked::Lent);
    let (_, asked) = ask(&slots, "fourth").await;
    assert_eq!(asked, Asked::Full { ahead: 0 });
    store.set_away(false);
    // What it lent is entered, what it gave up meanwhile is gone.
    eventually(async || {
        let held = store.holders(&pool()).await.unwrap();
        matches!(&held[..], [only] if &*only.holder.0 == "third")
    })
    .await;
}

#[actix::test]
async fn a_node_that_ends_gives_all_back() {
    let store = Absent::new();
    let slots = slots(&store);
    let (_first, _) = ask(&slots, "first").await;
    let (second, _) = ask(&slots, "second").await;
    drop(second);
    slots.leave().await;
    assert_eq!(held(&store).await, 0);
}

#[actix::test]
async fn a_store_that_is_back_at_once_is_asked_and_not_stood_in_for() {
    let store = Absent::new();
    let slots = slots(&store);
    let mut tickets = Vec::new();
    for name in ["first", "second"] {
        tickets.push(ask(&slots, name).await.0);
    }
    // As if both were another node's: its share would have room.
    let other = self::slots(&store);
    store.set_away(true);
    let asking = ask(&other, "third");
    let coming = async {
        tokio::time::sleep(super::PAUSE).await;
        store.set_away(false);
    };
    let ((_ticket, asked), ()) = tokio::join!(asking, coming);
    assert_eq!(asked, Asked::Full { ahead: 0 });
}

#[actix::test]
async fn a_store_that_lost_everything_hears_at_once_what_is_in_use() {
    let store = Absent::new();
    let slots = slots(&store);
    let (ticket, _) = ask(&slots, "first").await;
    store.give_back(vec![ticket.place.clone()]).await.unwrap();
    assert_eq!(held(&store).await, 0);
    slots.tell_again();
    eventually(async || held(&store).await == 1).await;
}
