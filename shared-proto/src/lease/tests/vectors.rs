//! The reference's own cases, by their ids. Those that say what is refused
//! before or after the lease itself are judged by what is here of them.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::driver::{Ask, Ended, Op};
use super::operations::Desk;
use super::*;
use crate::lease::lifecycle::{ConnectionLabel, action, context, managed, owner as read_owner};
use crate::lease::route::{RouteKind, RouteShape, supported};
use crate::mirror::key::Key;

const JSON: Option<&[u8]> = Some(b"application/json");

fn refused(code: LeaseCode) -> Value {
    json!({"status": code.status(), "code": code.as_str()})
}

fn with_dispatches(code: LeaseCode) -> Value {
    let mut refused = refused(code);
    refused["dispatches"] = json!(0);
    refused
}

fn code(outcome: Outcome) -> LeaseCode {
    outcome.unwrap_err().code().unwrap()
}

/// A has `c1`, and its generation, g: the vectors' 1.
fn leased(ttl_ms: u64) -> (Desk, Generation) {
    let mut desk = Desk::new(LeaseRules::new(ttl_ms, 2_000, 0));
    let generation = desk.acquire('A', &["c1"]).unwrap().lease.generation;
    (desk, generation)
}

/// More than g: the vectors' 2.
fn next(generation: Generation) -> Generation {
    Generation::new(generation.number() + 1).unwrap()
}

fn dispatch(generation: Generation) -> Ask {
    Ask::Dispatch(generation, candidates(&["c1", "c2"]))
}

/// What comes of the case `id`, in the words of its `then`; `None` if it is
/// not known here.
fn outcome(id: &str) -> Option<Value> {
    Some(match id {
        "EL-01" => refused(LeaseCode::AuthenticationRequired),
        "EL-02" => refused(action(Some(b"text/plain"), b"{}").unwrap_err()),
        "EL-03" => refused(managed(false, 1).unwrap_err()),
        "EL-05" => refused(read_owner(None).unwrap_err()),
        "EL-06" => refused(read_owner(Some(b"vlo_short")).unwrap_err()),
        "EL-07" => refused(action(JSON, br#"{"action":"steal"}"#).unwrap_err()),
        "EL-17" => {
            let token = token('A');
            with_dispatches(context(Some(token.as_bytes()), None).unwrap_err())
        }
        "EL-23" => {
            let fusion = RouteShape {
                kind: RouteKind::Several,
                targets: 2,
                ..RouteShape::default()
            };
            with_dispatches(supported(&fusion).unwrap_err())
        }
        "EL-28" => {
            let ttl = |ms| LeaseRules::new(ms, 0, 0).ttl_ms();
            json!({"ttlMs": [ttl(0), ttl(500), ttl(120_000), ttl(9_999_999)]})
        }
        "EL-15" => eligibility_unavailable(),
        _ => return lifecycle(id).or_else(|| inference(id)),
    })
}

fn eligibility_unavailable() -> Value {
    let table = LeaseTable::new();
    let mut seen = Seen::new(&table);
    seen.record(&owner('A').key(), None);
    let ask = Acquire {
        owner: &owner('A'),
        api_key: &ApiKeyId::from("K1"),
        candidates: &[],
        none: LeaseCode::EligibilityUnavailable,
    };
    let Decision::Done(Err(refusal)) = acquire(&seen, &ask, &LeaseRules::default(), T0) else {
        panic!("not refused")
    };
    let body = serde_json::to_value(refusal.body()).unwrap();
    let mut then = refused(refusal.code().unwrap());
    then["state_absent"] = json!(body.get("state").is_none());
    then["Retry-After"] = json!(refusal.retry_after_s().map_or("absent", |_| "present"));
    then
}

fn lifecycle(id: &str) -> Option<Value> {
    Some(match id {
        "EL-09" => {
            let (mut desk, generation) = leased(120_000);
            let first = desk.lease('A');
            desk.pass(30_000);
            let again = desk.acquire('A', &["c1"]).unwrap().lease;
            assert_eq!(again.generation, generation);
            assert_eq!(again.expires_at, first.expires_at);
            json!({"status": 200, "generation": 1, "expiresAt": "unchanged (only renew extends)"})
        }
        "EL-10" => {
            let (mut desk, generation) = leased(120_000);
            refused(code(desk.ask('A', Ask::Renew(next(generation)))))
        }
        "EL-11" => {
            let (mut desk, generation) = leased(120_000);
            let op = Op::new(&owner('A'), Ask::Renew(generation), T0).with_key("K2");
            refused(code(desk.outcome(op)))
        }
        "EL-13" => {
            let (mut desk, generation) = leased(120_000);
            desk.ask('A', Ask::Release(generation)).unwrap();
            let again = desk.acquire('A', &["c1"]).unwrap().lease.generation;
            assert!(again > generation);
            json!({"status": 200, "generation": 2})
        }
        "EL-14" => {
            let (mut desk, _) = leased(45_200);
            let refusal = desk.acquire('B', &["c1"]).unwrap_err();
            let mut body = serde_json::to_value(refusal.body()).unwrap();
            let message = body["error"].as_object_mut().unwrap().remove("message");
            assert!(message.is_some_and(|message| message.is_string()));
            let retry_after = refusal.retry_after_s().unwrap().to_string();
            let status = refusal.code().unwrap().status();
            json!({"status": status, "headers": {"Retry-After": retry_after}, "body": body})
        }
        "EL-27" => {
            let (mut desk, generation) = leased(120_000);
            let lease = desk.ask('A', Ask::Status(generation)).unwrap().lease;
            let label = ConnectionLabel {
                display_name: Some("Primary".to_owned()),
                provider: lease.provider.to_string(),
            };
            let answer = lease.answer(desk.store.now, Some(label));
            let answer = serde_json::to_value(answer).unwrap();
            let keys: BTreeSet<_> = answer.as_object().unwrap().keys().collect();
            json!({"status": 200, "keys": keys, "connection": answer["connection"]})
        }
        _ => return None,
    })
}

fn inference(id: &str) -> Option<Value> {
    Some(match id {
        "EL-18" => {
            let mut desk = Desk::new(LeaseRules::default());
            let generation = Generation::new(1).unwrap();
            with_dispatches(code(desk.ask('A', dispatch(generation))))
        }
        "EL-19" => {
            let (mut desk, generation) = leased(120_000);
            with_dispatches(code(desk.ask('A', dispatch(next(generation)))))
        }
        "EL-21" => {
            let (mut desk, generation) = leased(120_000);
            // Selected by what the table says, and queued; then released.
            for record in desk.store.records() {
                desk.table.put(&record);
            }
            desk.ask('A', Ask::Release(generation)).unwrap();
            with_dispatches(code(desk.ask('A', dispatch(generation))))
        }
        "EL-22" => {
            let (mut desk, generation) = leased(120_000);
            let dispatch = Ask::Dispatch(generation, candidates(&["c2"]));
            let sent = desk.run(Op::new(&owner('A'), dispatch, T0));
            let Ended::Sent(binding) = sent else {
                panic!("{sent:?}")
            };
            assert_eq!(binding.lease.generation, generation);
            let end = desk.bound("c1").end.unwrap().reason;
            json!({
                "status": 200, "connection": binding.lease.connection, "generation": 1,
                "c1_row": {"state": end.state().as_str(), "end_reason": end.as_str()},
            })
        }
        "EL-25" => {
            // Reserved by the configuration; and by the table while leased.
            let (desk, _) = leased(120_000);
            let mut table = LeaseTable::new();
            let key = Key::Bound(ConnectionId::from("c1"));
            table.put(&desk.store.load(&key).unwrap());
            assert!(table.is_leased(&ConnectionId::from("c1"), T0));
            json!({"c1": "never selectable"})
        }
        "EL-26" => {
            let (mut desk, generation) = leased(10_000);
            let before = desk.lease('A').expires_at;
            desk.ask('A', dispatch(generation)).unwrap();
            assert_eq!(desk.lease('A').expires_at, before);
            json!({"expiresAt": "T+10s (inference does not renew)"})
        }
        _ => return None,
    })
}

#[test]
fn each_case_comes_out_as_it_should() {
    let cases: Vec<Value> = serde_yaml_ng::from_str(include_str!("vectors.yaml")).unwrap();
    assert_eq!(cases.len(), 22);
    for case in cases {
        let id = case["id"].as_str().unwrap();
        let came = outcome(id).unwrap_or_else(|| panic!("{id} is not known"));
        assert_eq!(came, case["then"], "{id}");
    }
}
