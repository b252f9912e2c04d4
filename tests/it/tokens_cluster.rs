//! Two nodes and one account: one refresh, whatever becomes of the nodes and of
//! Redis meanwhile.

use std::time::Duration;

use cluster_tests::client::Answer;
use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::cut::Mode;
use cluster_tests::dialect::Dialect;
use cluster_tests::node::Node;
use cluster_tests::redis;
use cluster_tests::reply::{Gate, Reply};
use cluster_tests::tokens::{SECRET, TokenEndpoint, Turn, in_ms, tokens};
use cluster_tests::wait::{eventually, let_time_pass};
use futures_util::future::join_all;
use serde_json::json;

use crate::tokens_refresh::{LONG, ask};

async fn cluster(endpoint: &TokenEndpoint, expires_at: Option<i64>) -> Cluster {
    let plan = Plan::of(2).redis(redis::Setup::durable());
    let plan = plan.env(0, "OMNIROUTE_SECRET_KEY", SECRET);
    let plan = plan.env(1, "OMNIROUTE_SECRET_KEY", SECRET);
    plan.start(|upstream| {
        upstream.script_all([Dialect::Chat.ok("pong")]);
        endpoint.config(&upstream.url(), &["a"], expires_at)
    })
    .await
}

async fn herd(cluster: &Cluster, n: usize) -> Vec<Answer> {
    join_all((0..n).map(|at| ask(&cluster.nodes[at % 2]))).await
}

async fn uses(cluster: &Cluster, node: &Node, token: &str) {
    eventually("a token is used", || async {
        let before = cluster.upstream.count(token);
        let answer = ask(node).await;
        (answer.status == 200 && cluster.upstream.count(token) > before).then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_ended_token_is_renewed_once_for_the_cluster() {
    let endpoint = TokenEndpoint::start().await;
    let gate = Gate::closed();
    endpoint.script([Turn::Withheld(gate.clone())]);
    let cluster = cluster(&endpoint, in_ms(-1000)).await;
    let opening = async {
        endpoint.grant(1).await;
        let_time_pass(Duration::from_millis(300), "all of them wait by then").await;
        gate.open();
    };
    let (answers, ()) = tokio::join!(herd(&cluster, 40), opening);
    for answer in answers {
        answer.expect_status(200);
    }
    assert_eq!(endpoint.grants().len(), 1);
    assert_eq!(cluster.upstream.count("a.1"), 40);
}

#[tokio::test]
async fn a_refused_token_is_renewed_once_for_the_cluster() {
    let endpoint = TokenEndpoint::start().await;
    let cluster = cluster(&endpoint, in_ms(LONG)).await;
    let refused = Reply::error(401, "Invalid authentication credentials");
    cluster.upstream.script("a.0", [refused]);
    for answer in herd(&cluster, 40).await {
        answer.expect_status(200);
    }
    assert_eq!(endpoint.grants().len(), 1);
    for node in &cluster.nodes {
        let a = node.connection("a").await;
        assert_eq!(a["connectionStatus"], "healthy", "{a}");
    }
}

#[tokio::test]
async fn a_refused_refresh_token_is_known_to_all() {
    let endpoint = TokenEndpoint::start().await;
    let no = Turn::Answer(400, json!({"error": "invalid_grant"}), vec![]);
    endpoint.script([no]);
    let cluster = cluster(&endpoint, in_ms(LONG)).await;
    let refused = Reply::error(401, "Invalid authentication credentials");
    cluster.upstream.script("a.0", [refused]);
    for answer in herd(&cluster, 20).await {
        assert_eq!(answer.status, 503, "{}", answer.text());
    }
    for node in &cluster.nodes {
        let a = node.connection_becomes("a", "terminal").await;
        assert_eq!(a["testStatus"], "expired", "{a}");
    }
    assert_eq!(endpoint.grants().len(), 1);
}

#[tokio::test]
async fn nothing_is_in_redis_in_the_clear() {
    let endpoint = TokenEndpoint::start().await;
    let cluster = cluster(&endpoint, in_ms(-1000)).await;
    ask(&cluster.nodes[0]).await.expect_status(200);
    let contents = cluster.redis.contents().await;
    assert!(contents.contains(":token:a"), "{contents}");
    for secret in ["key-a.", "refresh-a."] {
        assert!(!contents.contains(secret), "{secret} in {contents}");
    }
}

/// The one that refreshes is killed while the endpoint dawdles: the lock lapses,
/// and the other asks. The endpoint had not judged the first grant.
#[tokio::test]
async fn the_other_takes_over_when_the_refresher_dies() {
    let endpoint = TokenEndpoint::start().await;
    let gate = Gate::closed();
    endpoint.script([Turn::Behind(gate.clone())]);
    let mut cluster = cluster(&endpoint, in_ms(LONG)).await;
    let refused = Reply::error(401, "Invalid authentication credentials");
    cluster.upstream.script("a.0", [refused]);
    let body = Dialect::Chat.request("plan/m", false);
    let call = cluster.nodes[0].post("/v1/chat/completions", &body);
    let lost = tokio::spawn(call.try_send());
    eventually("the lock is taken", || async {
        let keys = cluster.redis.keys().await;
        keys.iter()
            .any(|key| key.contains(":refresh:"))
            .then_some(())
    })
    .await;
    let_time_pass(Duration::from_millis(300), "the grant is on its way").await;
    cluster.nodes[0].kill_9().await;
    drop(lost.await);
    // Its own token is refused meanwhile, which is not the end of the account.
    uses(&cluster, &cluster.nodes[1], "a.1").await;
    assert_eq!(endpoint.grants().len(), 1);
    cluster.restart(0).await;
    uses(&cluster, &cluster.nodes[0], "a.1").await;
    assert_eq!(endpoint.grants().len(), 1);
    drop(gate);
}

/// Without the store nothing is refreshed: what came of it could not be stored
/// before it is used. The token in hand goes on being used.
#[tokio::test]
async fn without_the_store_nothing_is_refreshed() {
    let endpoint = TokenEndpoint::start().await;
    let cluster = cluster(&endpoint, in_ms(LONG)).await;
    cluster.cuts[0].set(Mode::Refuse).await;
    let node = &cluster.nodes[0];
    eventually("the node knows that the store is away", || async {
        let ready = node.get("/readyz").send().await.json();
        (ready["store"] == "down").then_some(())
    })
    .await;
    ask(node).await.expect_status(200);
    let refused = Reply::error(401, "this token was revoked by nobody in particular");
    cluster.upstream.script("a.0", [refused]);
    let answer = ask(node).await;
    assert_eq!(answer.status, 503, "{}", answer.text());
    let a = node.connection_becomes("a", "cooling_down").await;
    assert_eq!(a["testStatus"], "unavailable", "{a}");
    assert_eq!(endpoint.grants().len(), 0);
    cluster.cuts[0].set(Mode::Pass).await;
    uses(&cluster, node, "a.1").await;
    assert_eq!(endpoint.grants().len(), 1);
}

/// The endpoint answers while Redis is away: the only good refresh token is kept
/// until Redis has it, and nobody uses it before.
#[tokio::test]
async fn new_tokens_are_stored_although_the_store_was_away() {
    let endpoint = TokenEndpoint::start().await;
    let gate = Gate::closed();
    endpoint.script([Turn::Withheld(gate.clone())]);
    let cluster = cluster(&endpoint, in_ms(60_000)).await;
    endpoint.grant(1).await;
    for cut in &cluster.cuts {
        cut.set(Mode::Refuse).await;
    }
    gate.open();
    let_time_pass(Duration::from_secs(1), "a use of the new token would show").await;
    for node in &cluster.nodes {
        ask(node).await.expect_status(200);
    }
    assert_eq!(cluster.upstream.count("a.1"), 0);
    for cut in &cluster.cuts {
        cut.set(Mode::Pass).await;
    }
    for node in &cluster.nodes {
        uses(&cluster, node, "a.1").await;
    }
    assert_eq!(endpoint.grants().len(), 1);
}

#[tokio::test]
async fn a_store_that_lost_everything_is_told_again() {
    let endpoint = TokenEndpoint::start().await;
    let mut cluster = cluster(&endpoint, in_ms(-1000)).await;
    for node in &cluster.nodes {
        uses(&cluster, node, "a.1").await;
    }
    cluster.redis.kill().await;
    cluster.redis.restart_empty().await;
    eventually("the tokens are stored again", || async {
        let keys = cluster.redis.keys().await;
        keys.iter().any(|key| key.contains(":token:")).then_some(())
    })
    .await;
    cluster.nodes[1].kill_9().await;
    cluster.restart(1).await;
    for node in &cluster.nodes {
        uses(&cluster, node, "a.1").await;
    }
    assert_eq!(endpoint.grants().len(), 1);
}

/// A new credential reaches the nodes one after the other: each uses its own,
/// and neither undoes what the other does.
#[tokio::test]
async fn nodes_with_different_credentials_do_not_fight() {
    let endpoint = TokenEndpoint::start().await;
    let cluster = cluster(&endpoint, in_ms(-1000)).await;
    for node in &cluster.nodes {
        uses(&cluster, node, "a.1").await;
    }
    let entry = tokens("b", 0, in_ms(-1000));
    let mut one = json!({"id": "a", "provider": "plan"});
    one["oauth"] = entry["oauth"].clone();
    let changed = cluster.config_of(0).set(&["connections"], json!([one]));
    std::fs::write(cluster.nodes[0].setup().file(), changed.to_yaml()).unwrap();
    uses(&cluster, &cluster.nodes[0], "b.1").await;
    uses(&cluster, &cluster.nodes[1], "a.1").await;
    uses(&cluster, &cluster.nodes[0], "b.1").await;
    assert_eq!(endpoint.grants().len(), 2);
}
