//! A session limit that the account may have reset: asked for once, before the
//! lane, and never fatal.

use std::time::Duration;

use cluster_tests::client::Answer;
use cluster_tests::config::Config;
use cluster_tests::node::Node;
use cluster_tests::reply::{Gate, Reply};
use cluster_tests::upstream::Upstream;
use serde_json::{Value, json};

use super::{ask, config, epoch, lane, lanes, limit, ok, wall};

/// The calls beside inference, answered in the order in which they come: first
/// what is offered, then what became of the claim.
pub(crate) struct Api(Upstream);

impl Api {
    /// It offers a reset, and a claim of it gives this result.
    pub(crate) async fn offering(result: &str) -> Self {
        let claim = claimed(&json!({}), result);
        Self::answering([offer(), Reply::json(200, &claim)]).await
    }

    /// It answers this, the last one for ever.
    async fn answering(replies: impl IntoIterator<Item = Reply>) -> Self {
        let upstream = Upstream::start().await;
        upstream.script("a", replies);
        Self(upstream)
    }

    pub(crate) const fn upstream(&self) -> &Upstream {
        &self.0
    }

    /// Methods and paths so far.
    pub(crate) fn calls(&self) -> Vec<String> {
        let seen = self.0.requests();
        let calls = seen
            .iter()
            .map(|seen| format!("{} {}", seen.method, seen.path));
        calls.collect()
    }

    /// How many resets were claimed.
    pub(crate) fn claims(&self) -> usize {
        let calls = self.calls();
        calls.iter().filter(|call| call.starts_with("POST")).count()
    }
}

/// What the claim is answered; the result under each name it might have.
fn claimed(more: &Value, result: &str) -> Value {
    let mut body = json!({"result": result, "status": result, "outcome": result});
    let more = more.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(more);
    body
}

fn tide(tide: &Value) -> Reply {
    Reply::json(
        200,
        &json!({"five_hour": {"utilization": 100}, "juniper_tide": tide}),
    )
}

fn offer() -> Reply {
    tide(&json!({"eligible": true, "arm": "reset", "available": true}))
}

fn only_reset() -> Value {
    json!({"autoLimitReset": true, "organizationUUID": "org-1"})
}

/// Both switches.
pub(crate) fn both() -> Value {
    let mut data = only_reset();
    data["lowPriorityMode"] = lane()["lowPriorityMode"].clone();
    data
}

/// The wall of the session, without a time that would make the account rest
/// for longer than a test.
pub(crate) fn limited() -> Reply {
    let headers = [
        ("status", "rejected"),
        ("representative-claim", "five_hour"),
    ];
    limit(&headers).header("retry-after", "1")
}

struct World {
    upstream: Upstream,
    api: Api,
    node: Node,
}

async fn start(api: Api, data: &Value) -> World {
    let upstream = Upstream::start().await;
    let config: Config = config(&upstream, api.upstream(), data);
    let node = Node::start(&config).await;
    World {
        upstream,
        api,
        node,
    }
}

impl World {
    /// One request that meets the wall and would be served afterwards.
    async fn meets(&self, wall: Reply) -> Answer {
        self.node.connection_becomes("a", "healthy").await;
        self.upstream.script("a", [wall, ok()]);
        ask(&self.node).await
    }
}

/// LR-01, LR-02: at full speed, not on the lane.
#[tokio::test]
async fn a_reset_is_claimed_and_the_same_account_serves() {
    for result in ["reset", "not_limited"] {
        let world = start(Api::offering(result).await, &both()).await;
        let answer = world.meets(wall()).await;
        assert_eq!(answer.status, 200, "{result}: {}", answer.text());
        assert_eq!(lanes(&world.upstream), [false, false], "{result}");
        let [status, claim] = &world.api.upstream().requests()[..] else {
            panic!("{:?}", world.api.calls());
        };
        assert_eq!(status.method, "GET");
        let (path, query) = status.path.split_once('?').unwrap();
        assert_eq!(path, "/api/oauth/usage");
        for pair in ["at_wall=1", "skip_spend=1"] {
            assert!(query.split('&').any(|one| one == pair), "{query}");
        }
        assert_eq!(claim.method, "POST");
        assert_eq!(claim.path, "/api/organizations/org-1/reset_rate_limits");
        assert_eq!(claim.json(), json!({"program": "juniper_tide"}));
        for seen in [status, claim] {
            assert_eq!(seen.header("authorization"), Some("Bearer key-a"));
        }
        let a = world.node.connection("a").await;
        assert_eq!(a["connectionStatus"], "healthy", "{a}");
        assert_eq!(a["lastErrorType"], Value::Null, "{a}");
    }
}

/// It is opt-in.
#[tokio::test]
async fn nobody_is_asked_unless_it_is_wanted() {
    for data in [
        json!({}),
        json!({"autoLimitReset": false, "organizationUUID": "org-1"}),
        json!({"organizationUUID": "org-1"}),
    ] {
        let world = start(Api::offering("reset").await, &data).await;
        world.meets(limited()).await.expect_status(429);
        assert_eq!(world.api.calls(), Vec::<String>::new(), "{data}");
    }
}

/// LR-09: only a session can be reset, and only at the wall.
#[tokio::test]
async fn another_limit_is_no_reason_to_ask() {
    for (reply, asked) in [
        (
            limit(&[
                ("status", "rejected"),
                ("representative-claim", "seven_day"),
            ]),
            false,
        ),
        (limit(&[]), false),
        (limit(&[("status", "allowed")]), false),
        (limit(&[("status", "rejected")]), true),
        (limited(), true),
    ] {
        let what = format!("{reply:?}");
        let world = start(Api::offering("reset").await, &only_reset()).await;
        let reply = reply.header("retry-after", "1");
        let answer = world.meets(reply).await;
        assert_eq!(answer.status, if asked { 200 } else { 429 }, "{what}");
        assert_eq!(!world.api.calls().is_empty(), asked, "{what}");
    }
}

/// LR-07: for a minute a wall is taken for a stale one.
#[tokio::test]
async fn soon_after_a_reset_nobody_is_asked_again() {
    let world = start(Api::offering("reset").await, &only_reset()).await;
    for _ in 0..3 {
        world.meets(limited()).await.expect_status(200);
    }
    assert_eq!(world.api.calls().len(), 2, "{:?}", world.api.calls());
}

/// Every result that is no reset: the ordinary way, and no second question.
#[tokio::test]
async fn without_a_reset_the_refusal_goes_the_ordinary_way() {
    let answered = |body: &Value| vec![offer(), Reply::json(200, body)];
    let soon = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1);
    let announced = json!({"next_available_at": soon.to_string()});
    let mut cases = vec![
        (
            "not JSON",
            vec![offer(), Reply::text(200, "text/html", "<html>")],
        ),
        ("empty", vec![offer(), Reply::json(200, &json!({}))]),
        ("announced", answered(&claimed(&announced, "already_used"))),
    ];
    for result in [
        "already_used",
        "cooldown",
        "ineligible",
        "unavailable",
        "something_new",
    ] {
        cases.push((result, answered(&claimed(&json!({}), result))));
    }
    for (what, status) in [("429", 429), ("401", 401), ("403", 403), ("500", 500)] {
        cases.push((what, vec![offer(), Reply::error(status, "no")]));
    }
    for (what, replies) in cases {
        let world = start(Api::answering(replies).await, &only_reset()).await;
        let answer = world.meets(limited()).await;
        assert_eq!(answer.status, 429, "{what}: {}", answer.text());
        assert_eq!(world.api.claims(), 1, "{what}: {:?}", world.api.calls());
        // Whatever its token was answered there, the account is no worse.
        let a = world.node.connection("a").await;
        assert_ne!(a["connectionStatus"], "terminal", "{what}: {a}");
        let before = world.api.calls().len();
        let answer = world.meets(limited()).await;
        assert_eq!(answer.status, 429, "{what}: {}", answer.text());
        assert_eq!(world.api.calls().len(), before, "{what}: asked again");
    }
}

/// LR-05: what is not offered is not claimed.
#[tokio::test]
async fn what_is_not_offered_is_not_claimed() {
    let good = json!({"eligible": true, "arm": "reset", "available": true});
    let with = |key: &str, value: Value| {
        let mut tide = good.clone();
        tide[key] = value;
        tide
    };
    let cases = [
        tide(&with("arm", json!("control"))),
        tide(&with("eligible", json!(false))),
        tide(&with("available", json!(false))),
        tide(&with("eligible", json!("true"))),
        tide(&Value::Null),
        Reply::json(200, &json!({})),
        Reply::error(500, "down"),
        Reply::error(401, "who are you"),
        Reply::text(200, "text/html", "<html>Sign in</html>"),
    ];
    for reply in cases {
        let what = format!("{reply:?}");
        let world = start(Api::answering([reply]).await, &only_reset()).await;
        for _ in 0..2 {
            world.meets(limited()).await.expect_status(429);
        }
        assert_eq!(world.api.claims(), 0, "{what}");
        assert_eq!(world.api.calls().len(), 1, "{what}: asked again");
        let a = world.node.connection("a").await;
        assert_ne!(a["connectionStatus"], "terminal", "{what}: {a}");
    }
}

/// An announced time that has passed is no time to wait for, but neither a
/// reason to ask all the time.
#[tokio::test]
async fn a_time_in_the_past_is_ignored() {
    let past = jiff::Timestamp::now() - jiff::SignedDuration::from_hours(1);
    let body = claimed(
        &json!({"next_available_at": past.to_string(), "cooldown_until": past.to_string()}),
        "cooldown",
    );
    let replies = [offer(), Reply::json(200, &body)];
    let world = start(Api::answering(replies).await, &only_reset()).await;
    for _ in 0..2 {
        world.meets(limited()).await.expect_status(429);
    }
    assert_eq!(world.api.calls().len(), 2, "{:?}", world.api.calls());
}

/// LR-10.
#[tokio::test]
async fn the_lane_is_taken_where_there_is_no_reset() {
    let refusals = [
        vec![tide(&Value::Null)],
        vec![offer(), Reply::error(500, "down")],
        vec![
            offer(),
            Reply::json(200, &claimed(&json!({}), "already_used")),
        ],
    ];
    for replies in refusals {
        let world = start(Api::answering(replies).await, &both()).await;
        world.meets(wall()).await.expect_status(200);
        assert_eq!(lanes(&world.upstream), [false, true]);
        let a = world.node.connection("a").await;
        assert_eq!(a["lowPriorityLane"]["state"], "active", "{a}");
    }
}

/// LR-11: nobody knows whose limit it is.
#[tokio::test]
async fn without_an_organization_nothing_is_claimed() {
    let data = json!({"autoLimitReset": true});
    let api = Api::answering([offer(), Reply::error(404, "no such page")]).await;
    let world = start(api, &data).await;
    world.meets(limited()).await.expect_status(429);
    assert_eq!(world.api.claims(), 0);
    let before = world.api.calls().len();
    world.meets(limited()).await.expect_status(429);
    assert_eq!(world.api.calls().len(), before, "asked again");
    // The other spelling is one too.
    let data = json!({"autoLimitReset": true, "organization_uuid": "org-2"});
    let world = start(Api::offering("reset").await, &data).await;
    world.meets(limited()).await.expect_status(200);
    let calls = world.api.calls().join(" ");
    assert!(calls.contains("/organizations/org-2/"), "{calls}");
}

/// Several requests at the wall: one attempt, shared.
#[tokio::test]
async fn requests_at_the_wall_share_one_attempt() {
    let world = start(Api::offering("reset").await, &only_reset()).await;
    let gate = Gate::closed();
    let mut replies: Vec<Reply> = (0..8).map(|_| limited().behind(&gate)).collect();
    replies.push(ok());
    world.upstream.script("a", replies);
    let asking = futures_util::future::join_all((0..8).map(|_| ask(&world.node)));
    let opening = async {
        world.upstream.request("a", 8).await;
        gate.open();
    };
    let (answers, ()) = tokio::join!(asking, opening);
    for answer in answers {
        answer.expect_status(200);
    }
    assert_eq!(world.api.calls().len(), 2, "{:?}", world.api.calls());
}

/// Who is asked and does not answer is given up after 5 s.
#[tokio::test]
async fn a_silent_service_is_given_up() {
    let never = Gate::closed();
    let api = Api::answering([offer().behind(&never)]).await;
    let world = start(api, &both()).await;
    let answer = world.meets(wall()).await.expect_status(200);
    assert!(
        answer.took >= Duration::from_millis(4_500),
        "{:?}",
        answer.took
    );
    assert!(answer.took < Duration::from_secs(15), "{:?}", answer.took);
    assert_eq!(lanes(&world.upstream), [false, true]);
}

/// Neither a client nor the log sees the account's token.
#[tokio::test]
async fn no_token_is_told() {
    let upstream = Upstream::start().await;
    let words = "token key-a is not known";
    let api = Api::answering([offer(), Reply::error(401, words)]).await;
    let config = config(&upstream, api.upstream(), &only_reset());
    let setup = cluster_tests::node::Setup::with(&config).env("RUST_LOG", "trace");
    let mut node = setup.start().await;
    let reset = epoch(3600);
    let refused = limit(&[("status", "rejected"), ("reset", &reset)]);
    upstream.script("a", [refused, ok()]);
    let answer = ask(&node).await.expect_status(429);
    let trace = node.trace(&answer).await.to_string();
    node.stop().await;
    for text in [answer.text(), trace, node.log().text()] {
        assert!(!text.contains("key-a"), "{text}");
    }
}
