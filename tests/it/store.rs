//! The files of the embedded store, when somebody takes one away.

use std::fs;

use cluster_tests::dialect::{Dialect, all_providers};
use cluster_tests::node::Node;
use cluster_tests::reply::Reply;
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::SOON;
use serde_json::json;

#[tokio::test]
async fn a_lost_file_is_no_empty_start_until_the_operator_says_so() {
    let upstream = Upstream::start().await;
    let config = all_providers(&upstream.url(), &["a"], &json!({})).no_waiting();
    let mut node = Node::start(&config).await;
    upstream.script("chat-a", [Reply::limited(600)]);
    let call = node.post("/v1/chat/completions", &Dialect::Chat.ask(false));
    call.send().await.expect_status(429);
    assert!(node.stop().await.success());
    let dir = node.setup().dir().join("omniroute-data");
    let file = dir.join("mirror.redb");
    let whole = fs::read(&file).unwrap();
    fs::remove_file(&file).unwrap();

    let mut process = node.setup().spawn();
    let status = process.exit(SOON).await;
    process.log().closed().await;
    let text = process.log().text();
    assert_eq!(status.code(), Some(1), "{text}");
    for word in [
        "mirror.redb is gone",
        "put the file back",
        "remove `acknowledged` too",
    ] {
        assert!(text.contains(word), "{word}: {text}");
    }
    assert!(!file.exists(), "an empty store was made");

    fs::write(&file, &whole).unwrap();
    let mut node = node.start_again().await;
    let a = node.connection("chat-a").await;
    assert_eq!(a["connectionStatus"], "cooling_down", "{a}");
    assert!(node.stop().await.success());

    fs::remove_file(&file).unwrap();
    fs::remove_file(dir.join("acknowledged")).unwrap();
    let node = node.start_again().await;
    let a = node.connection("chat-a").await;
    assert_eq!(a["connectionStatus"], "healthy", "{a}");
}
