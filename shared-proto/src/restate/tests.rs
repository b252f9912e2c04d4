//! The restatement vectors RST-01 to RST-10, and operator rules.

use super::{RestateRule, Restated, built_in, restate};

fn quota(from_status: u16, retry_after_ms: u64) -> Restated<'static> {
    Restated {
        status: 429,
        retry_after_ms: Some(retry_after_ms),
        rule: "agentrouter-quota-misstatus",
        from_status,
    }
}

#[test]
fn agentrouter_vectors() {
    let rules = built_in();
    // (vector, provider, status, text, announced, expected)
    let table = [
        (
            "RST-01",
            "agentrouter",
            403,
            "用户额度不足",
            None,
            Some(quota(403, 60_000)),
        ),
        (
            "RST-02",
            "agentrouter",
            400,
            "额度不足",
            None,
            Some(quota(400, 60_000)),
        ),
        (
            "RST-03",
            "agentrouter",
            403,
            "额度不足 无权访问模型",
            None,
            None,
        ),
        (
            "RST-05",
            "agentrouter",
            403,
            "额度不足",
            Some(15_000),
            Some(quota(403, 15_000)),
        ),
        ("RST-06", "agentrouter", 401, "额度不足", None, None),
        (
            "RST-07",
            "AgentRouter",
            403,
            "额度不足",
            None,
            Some(quota(403, 60_000)),
        ),
        ("RST-09", "agentrouter", 403, "", None, None),
        // A negative wait can't be said in this type.
        (
            "RST-10",
            "agentrouter",
            403,
            "额度不足",
            Some(0),
            Some(quota(403, 60_000)),
        ),
        ("other provider", "openai", 403, "额度不足", None, None),
        ("other text", "agentrouter", 403, "forbidden", None, None),
    ];
    for (vector, provider, status, text, announced, expected) in table {
        let got = restate(&rules, provider, status, text, announced);
        assert_eq!(got, expected, "{vector}");
    }
}

#[test]
fn the_first_rule_that_fits_wins() {
    let rule = |id: &str, to| RestateRule {
        id: id.to_owned(),
        provider: "acme".to_owned(),
        from: vec![500],
        to,
        markers: vec!["Slow Down".to_owned()],
        excludes: vec![],
        default_retry_after_ms: None,
    };
    let rules = [rule("one", 429), rule("two", 503)];
    let got = restate(&rules, "acme", 500, "please slow down", None).unwrap();
    assert_eq!(
        (got.rule, got.status, got.retry_after_ms),
        ("one", 429, None)
    );
}

#[test]
fn an_empty_marker_marks_nothing() {
    let mut rules = built_in();
    rules[0].markers = vec![String::new()];
    assert_eq!(restate(&rules, "agentrouter", 403, "anything", None), None);
}
