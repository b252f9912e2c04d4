//! What proxy URLs mean, and what the library's errors say.

use std::io::Error;

use super::*;

fn uri(text: &str) -> Uri {
    Uri::try_from(text).unwrap()
}

#[test]
fn a_plain_request_is_read_by_an_http_proxy_only() {
    let (plain, secret) = (uri("http://llm.example/v1"), uri("https://llm.example/v1"));
    let shown = |url: &str, to: &Uri| {
        let proxy = Proxy::new(url).unwrap();
        proxy
            .login_for(to)
            .map(|value| value.to_str().unwrap().to_owned())
    };
    // user:pa:ss
    let basic = Some("Basic dXNlcjpwYTpzcw==".to_owned());
    assert_eq!(shown("http://user:pa%3Ass@proxy:3128", &plain), basic);
    assert_eq!(shown("https://user:pa:ss@proxy/", &plain), basic);
    assert_eq!(
        shown("HTTP://user@proxy", &plain),
        Some("Basic dXNlcjo=".to_owned())
    );
    assert_eq!(shown("http://user:pass@proxy:3128", &secret), None);
    assert_eq!(shown("socks5://user:pass@proxy", &plain), None);
    assert!(Proxy::new("http://proxy").unwrap().reads(&plain));
    assert!(!Proxy::new("socks5h://proxy").unwrap().reads(&plain));
}

#[test]
fn unusable_urls_say_nothing_of_their_password() {
    for url in [
        "user:secret@proxy",
        "ftp://user:secret@proxy",
        "http://user:secret@pro xy",
        "socks5://user:secret@[::1",
    ] {
        let Err(error) = Proxy::new(url) else {
            panic!("{url} was taken");
        };
        assert!(!error.to_string().contains("secret"), "{error}");
    }
    let long = format!("socks5://{}:x@proxy", "u".repeat(256));
    assert!(Proxy::new(&long).is_err());
}

#[test]
fn ports_are_spelled_out() {
    let port = |text: &str| with_port(&uri(text)).to_string();
    assert_eq!(port("http://a/v1"), "http://a:80/");
    assert_eq!(port("https://a/v1"), "http://a:443/");
    assert_eq!(port("https://[::1]/v1"), "http://[::1]:443/");
    assert_eq!(port("https://a:8443/v1"), "https://a:8443/v1");
}

#[tokio::test]
async fn addresses_stay_and_names_are_resolved() {
    let address = |text: &str| resolved(uri(text));
    assert_eq!(
        address("http://[::1]:80/").await.unwrap(),
        uri("http://[::1]:80/")
    );
    assert_eq!(
        address("http://192.0.2.1:80/").await.unwrap(),
        uri("http://192.0.2.1:80/")
    );
    let local = address("http://localhost:81/").await.unwrap();
    assert_eq!(local.port_u16(), Some(81));
    assert_ne!(local.host(), Some("localhost"));
}

#[test]
fn every_secret_of_a_url_is_known() {
    let all = secrets("http://user:p%40ss@proxy:3128");
    assert_eq!(all, ["p%40ss", "p@ss", "dXNlcjpwQHNz"]);
    assert!(secrets("http://proxy:3128").is_empty());
}

/// The words of hyper-util; its end-to-end tests are in `it/proxy_ways.rs`.
#[test]
fn the_words_of_errors() {
    for (words, fault) in [
        (
            "tunnel error: failed to create underlying connection",
            ProxyFault::Unreachable,
        ),
        (
            "tunnel error: proxy authorization required",
            ProxyFault::Login,
        ),
        ("tunnel error: unsuccessful", ProxyFault::Refused),
        ("tunnel error: unexpected end of file", ProxyFault::Garbage),
        (
            "tunnel error: io error establishing tunnel",
            ProxyFault::Garbage,
        ),
        (
            "tunnel error: proxy response headers too long",
            ProxyFault::Garbage,
        ),
        (
            "SOCKS error: failed to create underlying connection",
            ProxyFault::Unreachable,
        ),
        ("SOCKS error: credentials not accepted", ProxyFault::Login),
        (
            "SOCKS error: server does not support user/pass authentication",
            ProxyFault::Login,
        ),
        ("SOCKS error: connection not allowed", ProxyFault::Refused),
        ("SOCKS error: host unreachable", ProxyFault::Refused),
        (
            "SOCKS error: failed parsing server response",
            ProxyFault::Garbage,
        ),
        (
            "SOCKS error: io error during SOCKS handshake",
            ProxyFault::Garbage,
        ),
    ] {
        assert_eq!(ProxyFault::told(words), fault, "{words}");
    }
    let error = Error::other("nothing known");
    assert_eq!(ProxyFault::told(&error.to_string()), ProxyFault::Refused);
}
