//! What can be told without a server: words for failures, which servers will
//! do, and what does not open.

use std::sync::Arc;
use std::time::Duration;

use ::redis::{RedisError, Value};
use tempfile::TempDir;

use super::fault::{Cure, Fault};
use super::supervise::suits;
use super::{OpenError, Options, Redis};
use crate::clock::SystemClock;
use crate::config::{RedisUrl, StoreUrl};
use crate::mirror::key::Key;
use crate::mirror::{Health, LoadError, Mirror};

fn url(text: &str) -> RedisUrl {
    match text.parse() {
        Ok(StoreUrl::Redis(url)) => url,
        other => panic!("{text}: {other:?}"),
    }
}

fn open(text: &str) -> Result<Redis, OpenError> {
    Redis::open(&url(text), "p", Arc::new(SystemClock), Options::default())
}

fn hello(pairs: &[&str]) -> Value {
    let bulk = |text: &&str| Value::BulkString(text.as_bytes().to_vec());
    Value::Array(pairs.iter().map(bulk).collect())
}

#[test]
fn an_old_server_and_a_replica_will_not_do() {
    let told = |server, version, role| {
        let fault = suits(hello(&["server", server, "version", version, "role", role]));
        fault.err().map(|fault| fault.why.to_string())
    };
    assert_eq!(told("redis", "7.0.15", "master"), None);
    assert_eq!(told("redis", "10.2", "master"), None);
    assert_eq!(told("valkey", "9.1.0", "master"), None);
    assert_eq!(
        told("redis", "6.2.14", "master").unwrap(),
        "it is Redis 6.2.14, and 7.0 or newer is needed"
    );
    assert!(told("redis", "", "master").is_some());
    assert!(
        told("redis", "7.0.0", "replica")
            .unwrap()
            .contains("replica")
    );
    assert!(suits(Value::Int(1)).is_err());
    assert!(
        suits(hello(&[])).is_ok(),
        "what says nothing is taken at its word"
    );
}

#[test]
fn every_failure_has_its_cure_and_shows_no_control_characters() {
    for (reply, cure) in [
        ("READONLY You can't write", Cure::Reconnect),
        ("LOADING Redis is loading", Cure::Reconnect),
        ("MASTERDOWN Link with MASTER is down", Cure::Reconnect),
        ("CLUSTERDOWN Hash slot not served", Cure::Reconnect),
        ("MOVED 1 127.0.0.1:1", Cure::Reconnect),
        ("NOAUTH Authentication required.", Cure::Reconnect),
        ("WRONGPASS invalid", Cure::Reconnect),
        ("UNBLOCKED force unblock", Cure::Reconnect),
        ("ASK 1 127.0.0.1:1", Cure::Wait),
        ("TRYAGAIN Multiple keys", Cure::Wait),
        ("NOPERM this user", Cure::Wait),
        ("OOM command not allowed", Cure::Wait),
        ("MISCONF Redis is configured", Cure::Wait),
        ("NOREPLICAS Not enough", Cure::Wait),
        ("BUSY Redis is busy", Cure::Wait),
        ("FOREIGN the key", Cure::Wait),
        ("WRONGTYPE Operation against", Cure::Nothing),
        ("ERR a\u{7}b", Cure::Nothing),
    ] {
        let bytes = format!("-{reply}\r\n");
        let value = ::redis::parse_redis_value(bytes.as_bytes()).unwrap();
        let Value::ServerError(error) = value else {
            panic!("{value:?}");
        };
        let fault = Fault::of(&RedisError::from(error));
        assert_eq!(fault.cure, cure, "{reply}");
        let code = reply.split(' ').next().unwrap();
        assert!(fault.why.contains(code), "{reply}: {}", fault.why);
        assert!(!fault.why.contains('\u{7}'));
    }
    let gone = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
    assert_eq!(Fault::of(&gone.into()).cure, Cure::Reconnect);
}

#[tokio::test]
async fn files_of_the_url_are_read_when_it_is_opened() {
    let dir = TempDir::new().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let refused = |options: String| {
        let refused = open(&format!("rediss://h?{options}")).map(drop);
        refused.unwrap_err().to_string()
    };
    let absent = refused(format!("ca={}", at("absent.pem")));
    assert!(absent.contains("absent.pem"), "{absent}");
    std::fs::write(at("empty.pem"), "").unwrap();
    let empty = refused(format!("ca={}", at("empty.pem")));
    assert!(empty.contains("holds no certificates"), "{empty}");
    let broken = "-----BEGIN CERTIFICATE-----\n%%%\n-----END CERTIFICATE-----\n";
    std::fs::write(at("broken.pem"), broken).unwrap();
    let broken = refused(format!("ca={}", at("broken.pem")));
    assert!(broken.contains("holds no certificates"), "{broken}");
}

#[tokio::test]
async fn it_opens_without_a_server_and_says_what_is_wrong() {
    // A port where nobody listens.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    drop(taken);
    let redis = open(&format!("redis://:s3cret@127.0.0.1:{port}")).unwrap();
    assert!(matches!(redis.health(), Health::Degraded { .. }));
    let why = redis.contact().await.unwrap_err().to_string();
    assert!(why.contains(&format!("127.0.0.1:{port}")), "{why}");
    assert!(!why.contains("s3cret"), "{why}");
    let key = Key::Health("a".into());
    let loading = tokio::time::timeout(Duration::from_secs(5), redis.load(&key));
    let outcome = loading.await.unwrap();
    assert!(matches!(outcome, Err(LoadError::Unreachable(_))));
    assert!(redis.now().as_epoch_ms() > 0);
    redis.close().await.unwrap();
    assert!(redis.close().await.is_err());
}
