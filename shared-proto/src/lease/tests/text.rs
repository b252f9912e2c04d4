//! What clients send, what they are answered, and what is stored of it.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::lease::lifecycle::{
    Action, ConnectionLabel, action, context, managed, owner as read_owner,
};
use crate::lease::route::{RouteKind, RouteShape, supported};

const JSON: Option<&[u8]> = Some(b"application/json");

#[test]
fn owner_tokens() {
    let good = token('A');
    assert_eq!(
        OwnerToken::parse(good.as_bytes()).unwrap().hash().as_str(),
        "e92bcf4919157acf1a3c050ce99f6152b6eaa3002c77a160ad36d0c6652286d2"
    );
    assert!(OwnerToken::parse(format!(" {good}\t").as_bytes()).is_some());
    let mixed = format!("vlo_{}_-9", "aZ".repeat(20));
    assert!(OwnerToken::parse(mixed.as_bytes()).is_some());
    for bad in [
        String::new(),
        "vlo_short".to_owned(),
        format!("{good}A"),
        good.replace("vlo_", "VLO_"),
        format!("vlo_{}=", "A".repeat(42)),
        format!("vlo_{}é", "A".repeat(41)),
        format!("vlo_{} A", "A".repeat(41)),
    ] {
        assert!(OwnerToken::parse(bad.as_bytes()).is_none(), "{bad:?}");
    }
    assert!(OwnerToken::parse(&[b"vlo_".as_slice(), &[0xff; 43]].concat()).is_none());
}

#[test]
fn generations() {
    for (text, number) in [("1", 1), ("1790856000000", 1_790_856_000_000)] {
        assert_eq!(Generation::parse(text.as_bytes()).unwrap().number(), number);
    }
    assert_eq!(
        Generation::parse(b"9007199254740991"),
        Some(Generation::MAX)
    );
    for bad in [
        "",
        "0",
        "01",
        "-1",
        "+1",
        "1.0",
        "1e3",
        " 1",
        "1 ",
        "9007199254740992",
        "x",
    ] {
        assert_eq!(Generation::parse(bad.as_bytes()), None, "{bad:?}");
    }
    assert_eq!(Generation::parse("9".repeat(400).as_bytes()), None);
}

#[test]
fn a_generation_follows_the_last_and_the_time() {
    let number = |last: Option<u64>, now: u64| {
        let last = last.map(|last| Generation::new(last).unwrap());
        Generation::following(last, Millis::from_epoch_ms(now)).map(Generation::number)
    };
    assert_eq!(number(None, 0), Some(1));
    assert_eq!(number(None, 50), Some(50));
    assert_eq!(number(Some(7), 50), Some(50));
    assert_eq!(number(Some(50), 50), Some(51));
    assert_eq!(number(Some(99), 50), Some(100));
    assert_eq!(number(Some(Generation::MAX.number()), 50), None);
    assert_eq!(number(None, u64::MAX), None);
}

#[test]
fn lease_ids() {
    let id = LeaseId {
        owner: owner('A'),
        generation: Generation::new(12).unwrap(),
    };
    assert_eq!(LeaseId::parse(&id.to_string()), Some(id.clone()));
    let shouted = id.to_string().to_uppercase();
    for bad in [
        "",
        "-",
        "12",
        id.owner.as_str(),
        &format!("{id}-1"),
        &shouted,
    ] {
        assert_eq!(LeaseId::parse(bad), None, "{bad}");
    }
}

#[test]
fn actions() {
    let generation = Generation::new(7).unwrap();
    let released = |reason| Ok(Action::Release { generation, reason });
    let acquired = |model: &str| {
        Ok(Action::Acquire {
            model: model.to_owned(),
        })
    };
    let long = "m".repeat(512);
    let rows = [
        (
            r#"{"action":"acquire","model":" glm-5 "}"#.to_owned(),
            acquired("glm-5"),
        ),
        (
            r#"{"action":"acquire","model":"m","x":1}"#.to_owned(),
            acquired("m"),
        ),
        (
            format!(r#"{{"action":"acquire","model":"{long}"}}"#),
            acquired(&long),
        ),
        (
            r#"{"action":"renew","generation":7}"#.to_owned(),
            Ok(Action::Renew { generation }),
        ),
        (
            r#"{"action":"status","generation":7}"#.to_owned(),
            Ok(Action::Status { generation }),
        ),
        (
            r#"{"action":"release","generation":7}"#.to_owned(),
            released(EndReason::OwnerExit),
        ),
        (
            r#"{"reason":"CLIENT_CANCELLED","generation":7,"action":"release"}"#.to_owned(),
            released(EndReason::ClientCancelled),
        ),
    ];
    for (body, want) in rows {
        assert_eq!(action(JSON, body.as_bytes()), want, "{body}");
    }
    for bad in [
        "",
        "[]",
        "{}",
        "{",
        r#"{"action":"steal"}"#,
        r#"{"action":"acquire"}"#,
        r#"{"action":"acquire","model":"  "}"#,
        r#"{"action":"acquire","model":7}"#,
        r#"{"action":"ACQUIRE","model":"m"}"#,
        r#"{"action":"renew"}"#,
        r#"{"action":"renew","generation":0}"#,
        r#"{"action":"renew","generation":"7"}"#,
        r#"{"action":"renew","generation":9007199254740992}"#,
        r#"{"action":"release","generation":7,"reason":"TTL_EXPIRED"}"#,
        r#"{"action":"release","generation":7,"reason":null}"#,
    ] {
        assert_eq!(
            action(JSON, bad.as_bytes()),
            Err(LeaseCode::ActionInvalid),
            "{bad}"
        );
    }
    let longer = format!(r#"{{"action":"acquire","model":"{long}m"}}"#);
    assert_eq!(
        action(JSON, longer.as_bytes()),
        Err(LeaseCode::ActionInvalid)
    );
}

#[test]
fn media_types() {
    let body = br#"{"action":"renew","generation":7}"#;
    for good in [
        "application/json",
        "Application/JSON ; charset=utf-8",
        " application/json;x",
    ] {
        assert!(action(Some(good.as_bytes()), body).is_ok(), "{good}");
    }
    for bad in [
        "text/plain",
        "application/json2",
        "application/problem+json",
        "",
    ] {
        let refused = action(Some(bad.as_bytes()), b"not looked at");
        assert_eq!(refused, Err(LeaseCode::ContentTypeRequired), "{bad}");
    }
    assert_eq!(action(None, body), Err(LeaseCode::ContentTypeRequired));
}

#[test]
fn headers_in_their_order() {
    let good = token('A');
    let good = Some(good.as_bytes());
    assert_eq!(read_owner(None), Err(LeaseCode::ContextRequired));
    assert_eq!(read_owner(Some(b" \t ")), Err(LeaseCode::ContextRequired));
    assert_eq!(
        read_owner(Some(b"vlo_short")),
        Err(LeaseCode::ContextInvalid)
    );
    assert_eq!(read_owner(good), Ok(owner('A')));
    assert_eq!(context(None, Some(b"x")), Err(LeaseCode::ContextRequired));
    assert_eq!(
        context(Some(b"x"), Some(b"1")),
        Err(LeaseCode::ContextInvalid)
    );
    for bad in [None, Some(b"".as_slice()), Some(b"0"), Some(b"1.5")] {
        assert_eq!(context(good, bad), Err(LeaseCode::ContextInvalid));
    }
    let generation = Generation::new(3).unwrap();
    assert_eq!(context(good, Some(b"3")), Ok((owner('A'), generation)));
    assert_eq!(managed(false, 0), Err(LeaseCode::ScopeRequired));
    assert_eq!(managed(true, 0), Err(LeaseCode::KeyConfigurationInvalid));
    assert_eq!(managed(true, 1), Ok(()));
}

#[test]
fn bodies_of_refusals() {
    let body = Refusal::Code(LeaseCode::FenceStale).body();
    assert_eq!(
        serde_json::to_value(body).unwrap(),
        json!({"error": {
            "message": "LEASE FENCE STALE", "type": "lease_error", "code": "LEASE_FENCE_STALE"
        }})
    );
    assert!(Refusal::Ordinary.body().is_none());
    for code in LeaseCode::ALL {
        let refusal = Refusal::from(*code);
        assert_eq!(refusal.code(), Some(*code));
        assert!((400..=503).contains(&code.status()) && !code.message().is_empty());
        let waits = refusal.retry_after_s();
        assert_eq!(waits, (*code == LeaseCode::ServiceUnavailable).then_some(1));
        if code.status() == 409 && code.message() == code.message().to_uppercase() {
            assert_eq!(code.message(), code.as_str().replace('_', " "));
        }
    }
    let mut words: Vec<_> = LeaseCode::ALL.iter().map(|code| code.as_str()).collect();
    words.sort_unstable();
    words.dedup();
    assert_eq!(words.len(), LeaseCode::ALL.len());
}

#[test]
fn answers_say_no_more_than_they_should() {
    let lease = Lease {
        generation: Generation::new(9).unwrap(),
        api_key: ApiKeyId::from("K1"),
        provider: ProviderId::from("glm"),
        connection: ConnectionId::from("c1"),
        acquired_at: T0,
        renewed_at: T0.plus(1),
        expires_at: T0.plus(2_000),
        end: None,
    };
    let plain = json!({
        "state": "ACTIVE", "generation": 9, "acquiredAt": "2026-10-01T12:00:00.000Z",
        "renewedAt": "2026-10-01T12:00:00.001Z", "expiresAt": "2026-10-01T12:00:02.000Z",
    });
    assert_eq!(serde_json::to_value(lease.answer(T0, None)).unwrap(), plain);
    let label = ConnectionLabel {
        display_name: None,
        provider: "glm".to_owned(),
    };
    let mut whole = plain;
    whole["connection"] = json!({"displayName": null, "provider": "glm"});
    assert_eq!(
        serde_json::to_value(lease.answer(T0, Some(label))).unwrap(),
        whole
    );
    assert_eq!(lease.state(T0.plus(2_000)), LeaseState::Expired);
}

#[test]
fn routes() {
    let model = RouteShape {
        targets: 1,
        ..RouteShape::default()
    };
    let with = |change: fn(&mut RouteShape)| {
        let mut route = model.clone();
        change(&mut route);
        route
    };
    for good in [
        model.clone(),
        with(|route| route.targets = 5),
        with(|route| route.pins_connection = true),
        with(|route| route.kind = RouteKind::Pipeline),
    ] {
        assert_eq!(supported(&good), Ok(()), "{good:?}");
    }
    for bad in [
        with(|route| route.kind = RouteKind::Several),
        with(|route| route.duplicates = true),
        with(|route| (route.targets, route.pins_connection) = (2, true)),
        with(|route| (route.targets, route.kind) = (2, RouteKind::Pipeline)),
    ] {
        assert_eq!(supported(&bad), Err(LeaseCode::UnsupportedRoute), "{bad:?}");
        let outer = RouteShape {
            nested: vec![model.clone(), bad],
            ..model.clone()
        };
        assert_eq!(supported(&outer), Err(LeaseCode::UnsupportedRoute));
    }
}

proptest! {
    #[test]
    fn whatever_is_sent_is_judged(
        kind in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..40)),
        body in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        action(kind.as_deref(), &body).ok();
        action(JSON, &body).ok();
        context(kind.as_deref(), Some(&body)).ok();
    }

    #[test]
    fn a_token_is_its_own_shape_and_nothing_else(text in "vlo_[A-Za-z0-9_=-]{41,45}") {
        let plain = text.len() == 47 && !text.contains('=');
        prop_assert_eq!(OwnerToken::parse(text.as_bytes()).is_some(), plain);
    }

    #[test]
    fn settings_stay_within_their_bounds(ttl in any::<u64>(), grace in any::<u64>()) {
        let rules = LeaseRules::new(ttl, grace, 0);
        prop_assert!((MIN_TTL_MS..=MAX_TTL_MS).contains(&rules.ttl_ms()));
        prop_assert!(rules.handover_grace_ms() <= MAX_HANDOVER_GRACE_MS);
    }
}
