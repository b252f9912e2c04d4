//! Forms of `store.url`, what is wrong with others, and what is never told.

use secrecy::ExposeSecret as _;

use super::{RedisHost, RedisServers, RedisUrl, StoreUrl, parse};

fn redis(text: &str) -> RedisUrl {
    match parse(text) {
        Ok(StoreUrl::Redis(url)) => url,
        other => panic!("{text}: {other:?}"),
    }
}

fn host(host: &str, port: u16) -> RedisHost {
    RedisHost {
        host: host.into(),
        port,
    }
}

#[test]
fn every_form_is_read() {
    assert_eq!(parse("embedded:memory"), Ok(StoreUrl::Memory));
    assert_eq!(parse("embedded:./x"), Ok(StoreUrl::Disk("./x".into())));
    let one = redis("redis://h");
    assert_eq!(one.servers, RedisServers::Single(host("h", 6379)));
    assert_eq!((one.tls, one.db), (false, 0));
    let one = redis("rediss://[::1]:7000/12?ca=/etc/ca%201.pem&cert=c&key=k");
    assert_eq!(one.servers, RedisServers::Single(host("::1", 7000)));
    assert_eq!((one.tls, one.db), (true, 12));
    assert_eq!(one.ca, Some("/etc/ca 1.pem".into()));
    assert_eq!(one.client, Some(("c".into(), "k".into())));
    let many = redis("rediss+sentinel://a,b:1/my%2Fmaster/3?sentinelPassword=s%26");
    let hosts = vec![host("a", 26379), host("b", 1)];
    assert_eq!(
        many.servers,
        RedisServers::Sentinel(hosts, "my/master".into())
    );
    assert_eq!((many.tls, many.db), (true, 3));
    let password = many.sentinel_login.password.unwrap();
    assert_eq!(password.expose_secret(), "s&");
    let cluster = redis("redis+cluster://u%40v:p%3Aw:@a,b/");
    let hosts = vec![host("a", 6379), host("b", 6379)];
    assert_eq!(cluster.servers, RedisServers::Cluster(hosts));
    assert_eq!(cluster.login.user.as_deref(), Some("u@v"));
    assert_eq!(cluster.login.password.unwrap().expose_secret(), "p:w:");
    assert_eq!(redis("redis://:pw@h").login.user, None);
}

#[test]
fn what_is_wrong_is_said_and_the_text_is_not_repeated() {
    for (text, word) in [
        ("", "not a store"),
        ("memory", "not a store"),
        ("sqlite://x", "not a store"),
        ("redis:h", "not a store"),
        ("REDIS://h", "not a store"),
        ("embedded:", "names no directory"),
        ("redis://", "names no host"),
        ("redis://s3cret@h", "without a password"),
        ("redis://u:s3cret@", "names no host"),
        ("redis://u:s3cret@h:0", "port"),
        ("redis://u:s3cret@h:x", "port"),
        ("redis://u:s3cret@[::1", "IPv6"),
        ("redis://u:s3cret@a,b", "several hosts"),
        ("redis://u:s3cret@h/one", "database"),
        ("redis://u:s3cret@h/-1", "database"),
        ("redis://u:s3cret@h/+1", "database"),
        ("redis://u:s3cret%@h", "%XX"),
        ("redis://u:s3cret%ff@h", "%XX"),
        ("redis://u:s3cret#@h", "reserved"),
        ("redis://u:s3cret @h", "space"),
        ("redis+sentinel://u:s3cret@h", "names no master"),
        ("redis+sentinel://u:s3cret@h/", "names no master"),
        (
            "redis+sentinel://h/m?sentinelUser=s3cret",
            "sentinelPassword",
        ),
        ("redis+cluster://u:s3cret@h/1", "only one"),
        ("redis://u:s3cret@h?ca=/x", "rediss"),
        ("rediss://u:s3cret@h?cert=/x", "both"),
        ("rediss://u:s3cret@h?s3cret=1", "unknown option"),
        ("redis://h?sentinelPassword=s3cret", "no sentinels"),
    ] {
        let fault = parse(text).unwrap_err();
        assert!(fault.contains(word), "{text}: {fault}");
        assert!(!fault.contains("s3cret"), "{text}: {fault}");
    }
    let many = format!("redis+cluster://{}h", "h,".repeat(32));
    assert!(parse(&many).unwrap_err().contains("hosts"));
}

#[test]
fn what_is_shown_reads_back_without_its_secrets() {
    for (text, shown) in [
        ("redis://h", "redis://h:6379/0"),
        ("rediss://u:s3cret@[::1]:1/2?ca=c", "rediss://[::1]:1/2"),
        (
            "redis+sentinel://:s3cret@a,b/m?sentinelPassword=s3cret",
            "redis+sentinel://a:26379,b:26379/m/0",
        ),
        (
            "rediss+cluster://:s3cret@a,b",
            "rediss+cluster://a:6379,b:6379",
        ),
    ] {
        let url = redis(text);
        assert_eq!(url.to_string(), shown);
        assert_eq!(redis(shown).servers, url.servers);
        assert!(!format!("{url:?}").contains("s3cret"));
    }
    assert_ne!(redis("redis://:a@h"), redis("redis://:b@h"));
    assert_eq!(redis("redis://:a@h"), redis("redis://:a@h/0"));
}
