//! Requests are well formed; wrong answers are told from right ones.

use super::{Request, Scenario, Workload, Wrong};

fn request(workload: Workload) -> Request {
    Request::new(workload, "127.0.0.1:1".parse().unwrap())
}

#[test]
fn requests_are_json_of_the_stated_length() {
    for scenario in [Scenario::Small, Scenario::Large, Scenario::ReadyStreams] {
        let request = request(scenario.workload());
        let text = String::from_utf8(request.bytes).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.ends_with(&format!("content-length: {}", body.len())));
        let json: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(json["stream"], scenario == Scenario::ReadyStreams);
        let large = body.len() > 200_000 && body.len() < 205_000;
        assert_eq!(large, scenario == Scenario::Large);
    }
}

#[test]
fn a_plain_answer_must_tell_the_size_and_end() {
    let request = request(Workload::Plain { body_bytes: 0 });
    let sent = request.body_bytes;
    let answer = |size: usize| format!("{{\"f\":\"received-{size:010}\"}}");
    let check = |body: &str| request.check(200, body.as_bytes());
    assert_eq!(check(&answer(sent)), Ok(()));
    assert_eq!(check(&answer(sent - 5)), Ok(()));
    let received = Some(sent - 65);
    assert_eq!(
        check(&answer(sent - 65)),
        Err(Wrong::Received { received, sent })
    );
    assert_eq!(
        check("{}"),
        Err(Wrong::Received {
            received: None,
            sent
        })
    );
    assert_eq!(check(&answer(sent)[..26]), Err(Wrong::Unended));
}

#[test]
fn a_stream_must_have_all_its_events_and_its_end() {
    let request = request(Workload::Stream {
        events: 2,
        interval_us: 0,
    });
    let check = |body: &str| request.check(200, body.as_bytes());
    let event = "data: {}\n\n";
    let done = "data: [DONE]\n\n";
    assert_eq!(check(&format!("{event}: comment\n\n{event}{done}")), Ok(()));
    let missing = Wrong::Events {
        events: 1,
        expected: 2,
    };
    assert_eq!(check(&format!("{event}{done}")), Err(missing));
    assert_eq!(check(&format!("{event}{event}")), Err(Wrong::NotDone));
    assert_eq!(
        check(&format!("{event}{event}{done}x")),
        Err(Wrong::NotDone)
    );
}

#[test]
fn another_status_is_wrong_and_shows_the_start_of_the_body() {
    let request = request(Workload::Plain { body_bytes: 0 });
    let wrong = request
        .check(503, "no".repeat(1000).as_bytes())
        .unwrap_err();
    assert_eq!(
        wrong,
        Wrong::Status {
            status: 503,
            start: "no".repeat(100)
        }
    );
}
