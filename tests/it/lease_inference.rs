//! Requests under a lease: they use its connection and no other, from any
//! node, and nothing is sent without it.

use cluster_tests::client::{Answer, Call};
use cluster_tests::cluster::Cluster;
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::lease::{
    GENERATION, KEY, OWNER, Owner, PLAIN, RIVAL, connection_of, listed, listed_as, managed, moment,
};
use cluster_tests::node::Node;
use cluster_tests::upstream::Upstream;
use serde_json::{Value, json};

const MODEL: &str = "chat/demo-model";

fn all(upstream: &Upstream, shorts: &[&str]) -> Config {
    for dialect in Dialect::ALL {
        for short in shorts {
            upstream.script(&dialect.connection(short), [dialect.ok("pong")]);
        }
    }
    managed(&upstream.url(), &Dialect::ALL, shorts)
}

fn refused(answer: &Answer, status: u16, code: &str) {
    assert_eq!(answer.status, status, "for {code}: {}", answer.text());
    assert_eq!(answer.code(), code, "{}", answer.text());
    if status == 409 {
        let message = answer.json()["error"]["message"].clone();
        let message = message.as_str().unwrap().to_ascii_uppercase();
        assert_eq!(message, code.replace('_', " "));
    }
}

#[tokio::test]
async fn every_protocol_uses_the_bound_connection_on_every_node() {
    let cluster = Cluster::start(2, |upstream| all(upstream, &["a", "b"])).await;
    for dialect in Dialect::ALL {
        let owner = Owner::new(dialect.name(), KEY);
        let held = owner.hold(&cluster.nodes[0], &dialect.model()).await;
        let mut used = Vec::new();
        for turn in 0..4 {
            let node = &cluster.nodes[turn % 2];
            let answer = owner.ask(node, dialect, held, false).send().await;
            let answer = answer.expect_status(200);
            assert_eq!(dialect.text_of_answer(&answer.json()), "pong");
            used.push(answer.header("x-omniroute-connection").unwrap().to_owned());
        }
        for node in &cluster.nodes {
            cluster
                .upstream
                .script(&used[0], [dialect.ok_stream("flow")]);
            let stream = owner.ask(node, dialect, held, true).open().await;
            assert_eq!(stream.header("x-omniroute-connection"), Some(&*used[0]));
            dialect.expect_whole(&stream.finish().await, "flow");
        }
        assert!(used.iter().all(|one| *one == used[0]), "{used:?}");
    }
    // An answer ends no lease.
    listed_as(&cluster.nodes[1], 3).await;
}

#[tokio::test]
async fn both_headers_are_needed_and_well_formed() {
    let cluster = Cluster::start(1, |upstream| all(upstream, &["a"])).await;
    let node = &cluster.nodes[0];
    let owner = Owner::new("alice", KEY);
    let held = owner.hold(node, MODEL).await.to_string();
    for dialect in Dialect::ALL {
        let bare = || node.post(dialect.path(), &dialect.ask(false)).bearer(KEY);
        let owned = || bare().header(OWNER, &owner.token);
        let counted = |call: Call| call.header(GENERATION, &held);
        for call in [bare(), counted(bare()), counted(bare().header(OWNER, " "))] {
            refused(&call.send().await, 400, "LEASE_CONTEXT_REQUIRED");
        }
        let short = counted(bare().header(OWNER, "vlo_short"));
        refused(&short.send().await, 400, "LEASE_CONTEXT_INVALID");
        refused(&owned().send().await, 400, "LEASE_CONTEXT_INVALID");
        let zero_led = format!("0{held}");
        for bad in [
            "",
            "0",
            "-1",
            "+1",
            "1.0",
            "1e3",
            "x",
            &zero_led,
            "9007199254740992",
            "99999999999999999999999",
        ] {
            let answer = owned().header(GENERATION, bad).send().await;
            refused(&answer, 400, "LEASE_CONTEXT_INVALID");
        }
    }
    assert!(cluster.upstream.requests().is_empty());
}

#[tokio::test]
async fn without_the_very_lease_nothing_is_sent() {
    let cluster = Cluster::start(2, |upstream| all(upstream, &["a"])).await;
    let owner = Owner::new("alice", KEY);
    for node in &cluster.nodes {
        let early = owner.ask(node, Dialect::Chat, 1, false).send().await;
        refused(&early, 409, "LEASE_REQUIRED");
    }
    let held = owner.hold(&cluster.nodes[0], MODEL).await;
    let thief = Owner {
        key: RIVAL.into(),
        ..owner.clone()
    };
    let nobody = Owner::new("nobody", KEY);
    for node in &cluster.nodes {
        for dialect in Dialect::ALL {
            let body = dialect.request(MODEL, true);
            let ask = |who: &Owner, generation| who.ask_for(node, dialect, generation, &body);
            for generation in [held + 1, held - 1, 1] {
                let stale = ask(&owner, generation).send().await;
                refused(&stale, 409, "LEASE_FENCE_STALE");
            }
            let stolen = ask(&thief, held).send().await;
            refused(&stolen, 409, "LEASE_FENCE_STALE");
            let unknown = ask(&nobody, held).send().await;
            refused(&unknown, 409, "LEASE_REQUIRED");
        }
    }
    owner
        .release(&cluster.nodes[1], held)
        .await
        .expect_status(200);
    for node in &cluster.nodes {
        let late = owner.ask(node, Dialect::Chat, held, false).send().await;
        refused(&late, 409, "LEASE_REQUIRED");
    }
    assert!(cluster.upstream.requests().is_empty());
    let a = cluster.nodes[0].connection("chat-a").await;
    assert_eq!(a["connectionStatus"], "healthy", "{a}");
    assert_eq!(a["backoffLevel"], 0, "{a}");
}

#[tokio::test]
async fn another_connection_can_t_be_forced() {
    let cluster = Cluster::start(1, |upstream| {
        all(upstream, &["a", "b"])
            .combo("on-chat-a", &["chat/demo-model@chat-a"])
            .combo("on-chat-b", &["chat/demo-model@chat-b"])
    })
    .await;
    let node = &cluster.nodes[0];
    let owner = Owner::new("alice", KEY);
    let held = owner.hold(node, MODEL).await;
    let leases = listed(node).await;
    let bound = connection_of(&leases[0]);
    let other = if bound == "chat-a" {
        "chat-b"
    } else {
        "chat-a"
    };
    for (connection, status) in [(bound, 200), (other, 409)] {
        let forced = owner
            .ask(node, Dialect::Chat, held, false)
            .header("x-omniroute-connection", connection)
            .send()
            .await;
        let body = Dialect::Chat.request(&format!("on-{connection}"), false);
        let combo = owner.ask_for(node, Dialect::Chat, held, &body).send().await;
        for answer in [forced, combo] {
            assert_eq!(answer.status, status, "{}", answer.text());
            if status == 409 {
                refused(&answer, 409, "LEASE_CONNECTION_MISMATCH");
            }
        }
    }
    assert_eq!(cluster.upstream.count(other), 0);
    owner.renew(node, held).await.expect_status(200);
}

fn combo(name: &str, strategy: &str, targets: &Value) -> Value {
    json!({"name": name, "strategy": strategy, "targets": targets})
}

#[tokio::test]
async fn routes_that_leave_the_connection_are_refused() {
    let (one, two) = (json!({"model": MODEL}), json!({"model": "chat/other"}));
    let pinned = json!({"model": "chat/other", "connection": "chat-b"});
    let combos = json!([
        combo("stepped", "priority", &json!([one, pinned])),
        combo("plain", "priority", &json!([one, two])),
    ]);
    let cluster = Cluster::start(1, |upstream| {
        all(upstream, &["a", "b"]).set(&["combos"], combos)
    })
    .await;
    let node = &cluster.nodes[0];
    let owner = Owner::new("alice", KEY);
    let held = owner.hold(node, MODEL).await;
    let ask = |name: &str| {
        let body = Dialect::Chat.request(name, false);
        owner.ask_for(node, Dialect::Chat, held, &body).send()
    };
    refused(&ask("stepped").await, 409, "LEASE_UNSUPPORTED_ROUTE");
    assert!(cluster.upstream.requests().is_empty());
    ask("plain").await.expect_status(200);
}

#[tokio::test]
async fn managed_connections_are_never_for_others() {
    let cluster = Cluster::start(2, |upstream| {
        upstream.script("chat-open", [Dialect::Chat.ok("open")]);
        all(upstream, &["a", "b"])
            .connection_with("chat-open", "chat", json!({"priority": 9}))
            .combo("on-a", &["chat/demo-model@chat-a"])
    })
    .await;
    let plain = |node: &Node, model: &str| {
        let body = Dialect::Chat.request(model, false);
        node.post("/v1/chat/completions", &body).bearer(PLAIN)
    };
    let owner = Owner::new("alice", KEY);
    for leased in [false, true] {
        if leased {
            owner.hold(&cluster.nodes[0], MODEL).await;
        }
        for node in &cluster.nodes {
            for _ in 0..3 {
                let answer = plain(node, MODEL).send().await.expect_status(200);
                let used = answer.header("x-omniroute-connection");
                assert_eq!(used, Some("chat-open"));
            }
            for call in [
                plain(node, "on-a"),
                plain(node, "messages/demo-model"),
                plain(node, "on-a")
                    .header(OWNER, &owner.token)
                    .header(GENERATION, "1"),
            ] {
                assert!(call.send().await.status >= 400);
            }
            let forced = plain(node, MODEL).header("x-omniroute-connection", "chat-a");
            // Refused or ignored, but never followed.
            forced.send().await;
        }
    }
    for id in ["chat-a", "chat-b", "messages-a", "messages-b"] {
        assert_eq!(cluster.upstream.count(id), 0, "{id}");
    }
}

#[tokio::test]
async fn a_stranger_with_the_headers_of_a_lease_gains_nothing() {
    let cluster = Cluster::start(1, |upstream| all(upstream, &["a"])).await;
    let node = &cluster.nodes[0];
    let owner = Owner::new("alice", KEY);
    let held = owner.hold(node, MODEL).await;
    let stranger = Owner {
        key: PLAIN.into(),
        ..owner.clone()
    };
    let answer = stranger.ask(node, Dialect::Chat, held, false).send().await;
    assert!(answer.status >= 400, "{}", answer.text());
    let stranger = Owner {
        key: "nobodys-key".into(),
        ..owner
    };
    let answer = stranger.ask(node, Dialect::Chat, held, false).send().await;
    assert_eq!(answer.status, 401, "{}", answer.text());
    assert!(cluster.upstream.requests().is_empty());
}

#[tokio::test]
async fn using_a_lease_does_not_extend_it() {
    let cluster = Cluster::start(2, |upstream| all(upstream, &["a"])).await;
    let owner = Owner::new("alice", KEY);
    let acquired = owner.acquire(&cluster.nodes[0], MODEL).await;
    let held = cluster_tests::lease::generation(&acquired);
    for node in &cluster.nodes {
        let answer = owner.ask(node, Dialect::Chat, held, false).send().await;
        answer.expect_status(200);
        let status = owner.status(node, held).await.expect_status(200);
        assert_eq!(moment(&status, "expiresAt"), moment(&acquired, "expiresAt"));
        assert_eq!(moment(&status, "renewedAt"), moment(&acquired, "renewedAt"));
    }
}

#[tokio::test]
async fn sessions_and_prompts_do_not_move_a_lease() {
    let cluster = Cluster::start(2, |upstream| {
        let ttl = json!(600_000);
        all(upstream, &["a", "b"]).set(&["settings", "sessionAffinityTtlMs"], ttl)
    })
    .await;
    let owners = [Owner::new("alice", KEY), Owner::new("bob", KEY)];
    let mut used: Vec<Vec<String>> = vec![Vec::new(), Vec::new()];
    let mut held = Vec::new();
    for owner in &owners {
        held.push(owner.hold(&cluster.nodes[0], MODEL).await);
    }
    for turn in 0..6 {
        for (at, owner) in owners.iter().enumerate() {
            let answer = owner
                .ask(&cluster.nodes[turn % 2], Dialect::Chat, held[at], false)
                .header("x-session-id", "the-same-session")
                .send()
                .await
                .expect_status(200);
            used[at].push(answer.header("x-omniroute-connection").unwrap().to_owned());
        }
    }
    assert_ne!(used[0][0], used[1][0]);
    for mine in &used {
        assert!(mine.iter().all(|one| *one == mine[0]), "{used:?}");
    }
}
