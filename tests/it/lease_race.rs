//! Many want one connection at the same moment, on several nodes: the store
//! decides, and one has it.

use std::collections::BTreeMap;
use std::sync::Arc;

use cluster_tests::client::Answer;
use cluster_tests::cluster::Cluster;
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::lease::{KEY, Owner, RIVAL, connection_of, generation, listed_as, managed};
use cluster_tests::upstream::{Seen, Upstream};
use futures_util::future::join_all;
use serde_json::json;

const MODEL: &str = "chat/demo-model";

fn config(upstream: &Upstream, shorts: &[&str]) -> Config {
    managed(&upstream.url(), &[Dialect::Chat], shorts)
}

fn crowd(size: usize) -> Vec<Owner> {
    (0..size)
        .map(|n| Owner::new(&format!("owner{n}"), if n % 2 == 0 { KEY } else { RIVAL }))
        .collect()
}

/// All ask at once, each on the next node.
async fn all_acquire(cluster: &Cluster, owners: &[Owner]) -> Vec<Answer> {
    let asking = owners.iter().enumerate().map(|(at, owner)| {
        let node = &cluster.nodes[at % cluster.nodes.len()];
        owner.acquire(node, MODEL)
    });
    join_all(asking).await
}

fn winners(answers: &[Answer]) -> Vec<usize> {
    let mut won = Vec::new();
    for (at, answer) in answers.iter().enumerate() {
        match answer.status {
            200 => won.push(at),
            429 => assert_eq!(answer.code(), "LEASE_CAPACITY_UNAVAILABLE"),
            _ => panic!("{}: {}", answer.status, answer.text()),
        }
    }
    won
}

#[tokio::test]
async fn one_of_many_owners_wins_on_two_nodes() {
    let cluster = Cluster::start(2, |upstream| config(upstream, &["a"])).await;
    let owners = crowd(12);
    for round in 0..8 {
        let answers = all_acquire(&cluster, &owners).await;
        let won = winners(&answers);
        assert_eq!(won.len(), 1, "round {round}: {won:?}");
        let (winner, held) = (&owners[won[0]], generation(&answers[won[0]]));
        let other = &cluster.nodes[round % 2];
        winner.status(other, held).await.expect_status(200);
        winner.release(other, held).await.expect_status(200);
    }
}

#[tokio::test]
async fn every_connection_finds_one_owner_on_three_nodes() {
    let cluster = Cluster::start(3, |upstream| config(upstream, &["a", "b", "c", "d"])).await;
    let owners = crowd(15);
    let answers = all_acquire(&cluster, &owners).await;
    assert_eq!(winners(&answers).len(), 4);
    for node in &cluster.nodes {
        let leases = listed_as(node, 4).await;
        let mut held: Vec<&str> = leases.iter().map(connection_of).collect();
        held.sort_unstable();
        assert_eq!(held, ["chat-a", "chat-b", "chat-c", "chat-d"]);
    }
}

#[tokio::test]
async fn one_owner_on_all_nodes_has_one_lease() {
    let cluster = Cluster::start(3, |upstream| config(upstream, &["a", "b", "c"])).await;
    for name in ["alice", "bob"] {
        let owner = Owner::new(name, KEY);
        let same: Vec<Owner> = vec![owner.clone(); 9];
        let answers = all_acquire(&cluster, &same).await;
        let told: Vec<u64> = answers
            .iter()
            .map(|answer| {
                assert_eq!(answer.status, 200, "{}", answer.text());
                generation(answer)
            })
            .collect();
        assert!(told.iter().all(|one| *one == told[0]), "{told:?}");
        listed_as(&cluster.nodes[1], 1).await;
        owner
            .release(&cluster.nodes[2], told[0])
            .await
            .expect_status(200);
        listed_as(&cluster.nodes[0], 0).await;
    }
}

#[tokio::test]
async fn two_keys_with_one_token_never_both_hold_it() {
    let cluster = Cluster::start(2, |upstream| config(upstream, &["a", "b"])).await;
    for _ in 0..5 {
        let team = Owner::new("shared", KEY);
        let rival = Owner {
            key: RIVAL.into(),
            ..team.clone()
        };
        let answers = all_acquire(&cluster, &[team.clone(), rival.clone()]).await;
        let won: Vec<&Answer> = answers.iter().filter(|one| one.status == 200).collect();
        assert_eq!(won.len(), 1, "{answers:?}");
        let lost = answers.iter().find(|one| one.status != 200).unwrap();
        assert_eq!(
            (lost.status, lost.code().as_str()),
            (409, "LEASE_FENCE_STALE")
        );
        let winner = if answers[0].status == 200 {
            team
        } else {
            rival
        };
        winner
            .release(&cluster.nodes[1], generation(won[0]))
            .await
            .expect_status(200);
    }
}

/// Renewing and releasing at once: whatever the order, the released lease is
/// over, and what came too late was refused.
#[tokio::test]
async fn a_renewal_never_revives_what_was_released() {
    let cluster = Cluster::start(2, |upstream| config(upstream, &["a"])).await;
    let owner = Owner::new("alice", KEY);
    for _ in 0..10 {
        let held = owner.hold(&cluster.nodes[0], MODEL).await;
        let renewing = (0..4).map(|at| owner.renew(&cluster.nodes[at % 2], held));
        let (renewed, released) =
            futures_util::future::join(join_all(renewing), owner.release(&cluster.nodes[1], held))
                .await;
        released.expect_status(200);
        for answer in renewed {
            assert!(matches!(answer.status, 200 | 409), "{}", answer.text());
        }
        let late = owner.renew(&cluster.nodes[0], held).await;
        assert_eq!(late.status, 409, "{}", late.text());
        listed_as(&cluster.nodes[0], 0).await;
    }
}

/// Owners come and go on three nodes. The upstream sees who used a connection
/// and when: no two of them at the same time, and nobody after a successor.
#[tokio::test]
async fn no_connection_is_ever_used_by_two_owners() {
    let cluster = Cluster::start(3, |upstream| config(upstream, &["a", "b"])).await;
    cluster
        .upstream
        .script_all([Dialect::Chat.ok("pong").after_ms(5)]);
    let owners = crowd(6);
    let working = owners.iter().enumerate().map(|(at, owner)| {
        let cluster = &cluster;
        async move {
            let mut served = 0;
            for turn in 0..40 {
                let node = &cluster.nodes[(at + turn) % 3];
                let answer = owner.acquire(node, MODEL).await;
                if answer.status != 200 {
                    assert_eq!(answer.status, 429, "{}", answer.text());
                    continue;
                }
                let held = generation(&answer);
                let next = &cluster.nodes[(at + turn + 1) % 3];
                let mut body = Dialect::Chat.ask(false);
                body["user"] = json!(owner.token);
                let answer = owner.ask_for(next, Dialect::Chat, held, &body).send().await;
                served += i32::from(answer.expect_status(200).status == 200);
                owner.release(node, held).await.expect_status(200);
            }
            served
        }
    });
    let served: i32 = join_all(working).await.into_iter().sum();
    assert!(served >= 10, "only {served} requests were served");
    expect_exclusive(&cluster.upstream);
}

fn expect_exclusive(upstream: &Upstream) {
    let mut last: BTreeMap<String, Vec<(String, Arc<Seen>)>> = BTreeMap::new();
    for seen in upstream.requests() {
        let user = seen.json()["user"].as_str().unwrap().to_owned();
        let before = last.entry(seen.key.clone()).or_default();
        for (other, earlier) in before.iter() {
            let clash = *other != user && seen.overlaps(earlier);
            assert!(!clash, "{} used by {user} and {other}", seen.key);
        }
        before.push((user, seen));
    }
}
