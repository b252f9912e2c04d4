//! What the guide says of networks, disruptions and scaling is what the chart
//! makes, field by field; the alerts tell what they should.

use cluster_tests::chart::{Chart, VALUES, succeed, text_of};
use cluster_tests::pod::text;
use serde_json::{Value, json};
use tokio::process::Command;

/// The rows of a table of the guide between its marks, without its head.
fn table(name: &str) -> Vec<Vec<String>> {
    let guide = text_of("deploy/README.md");
    let (_, rest) = guide
        .split_once(&format!("<!-- asserted:{name} -->\n"))
        .unwrap();
    let (table, _) = rest.split_once("<!-- end -->").unwrap();
    let cells = |line: &str| {
        line.trim_matches('|')
            .split(" | ")
            .map(|cell| cell.trim().to_owned())
            .collect()
    };
    table.lines().skip(2).map(cells).collect()
}

fn rows<const N: usize>(rows: &[[String; N]]) -> Vec<Vec<String>> {
    rows.iter().map(|row| row.to_vec()).collect()
}

/// The component that a selector picks; it has to be of this release only.
fn component(selector: &Value) -> String {
    let labels = &selector["matchLabels"];
    assert_eq!(labels["app.kubernetes.io/instance"], "rel", "{selector}");
    assert_eq!(labels.as_object().unwrap().len(), 3, "{selector}");
    text(&labels["app.kubernetes.io/component"]).to_owned()
}

#[tokio::test]
async fn the_autoscaler_is_what_the_guide_says() {
    let chart = Chart::with("minimal", &["router.autoscaling.enabled=true"]).await;
    let hpa = &chart.one("HorizontalPodAutoscaler", "-router")["spec"];
    let deployment = chart.one("Deployment", "-router");
    assert_eq!(
        hpa["scaleTargetRef"],
        json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "name": deployment["metadata"]["name"]})
    );
    assert!(deployment["spec"]["replicas"].is_null(), "two would decide");
    assert_eq!(
        (&hpa["minReplicas"], &hpa["maxReplicas"]),
        (&json!(3), &json!(12))
    );
    let [flight, cpu] = &hpa["metrics"].as_array().unwrap()[..] else {
        panic!("{hpa}");
    };
    assert_eq!(
        flight["pods"]["metric"]["name"],
        "omniroute_requests_in_flight"
    );
    assert_eq!(flight["pods"]["target"]["type"], "AverageValue");
    assert_eq!(cpu["resource"]["name"], "cpu");
    let target = format!(
        "{} requests in flight, or {} % of the requested CPU",
        text(&flight["pods"]["target"]["averageValue"]),
        cpu["resource"]["target"]["averageUtilization"],
    );
    let (up, down) = (&hpa["behavior"]["scaleUp"], &hpa["behavior"]["scaleDown"]);
    assert_eq!(up["stabilizationWindowSeconds"], 0);
    assert_eq!(
        up["policies"],
        json!([
            {"type": "Percent", "value": 100, "periodSeconds": 30},
            {"type": "Pods", "value": 2, "periodSeconds": 30},
        ])
    );
    let policy = &down["policies"][0];
    assert_eq!(
        (&policy["type"], &policy["value"]),
        (&json!("Pods"), &json!(1))
    );
    assert_eq!(down["policies"].as_array().unwrap().len(), 1);
    let down = format!(
        "one pod every {} s, after {} s of calm",
        policy["periodSeconds"], down["stabilizationWindowSeconds"]
    );
    let up = "at once; doubles, or two pods, every 30 s".to_owned();
    let first = "target, average of a pod".to_owned();
    assert_eq!(
        table("hpa"),
        rows(&[[first, target], ["up".into(), up], ["down".into(), down]])
    );
}

#[tokio::test]
async fn without_a_target_there_is_no_metric_of_it() {
    let sets = [
        "router.autoscaling.enabled=true",
        "router.autoscaling.targetRequestsInFlight=0",
    ];
    let chart = Chart::with("minimal", &sets).await;
    let metrics = &chart.one("HorizontalPodAutoscaler", "")["spec"]["metrics"];
    assert_eq!(metrics.as_array().unwrap().len(), 1, "{metrics}");
    assert_eq!(metrics[0]["type"], "Resource");
    assert!(
        Chart::of("minimal")
            .await
            .all("HorizontalPodAutoscaler")
            .is_empty()
    );
}

#[tokio::test]
async fn the_disruption_budgets_are_what_the_guide_says() {
    let chart = Chart::of("minimal").await;
    assert_eq!(chart.all("PodDisruptionBudget").len(), 2);
    let row = |name: &str| {
        let spec = &chart.one("PodDisruptionBudget", &format!("-{name}"))["spec"];
        assert_eq!(component(&spec["selector"]), name);
        assert!(spec["minAvailable"].is_null());
        assert_eq!(spec["unhealthyPodEvictionPolicy"], "AlwaysAllow");
        [
            format!("{name}s"),
            spec["maxUnavailable"].to_string(),
            "may always be evicted".into(),
        ]
    };
    assert_eq!(table("pdb"), rows(&[row("router"), row("coordinator")]));
}

/// The ports of a rule: numbers, since not every network knows a pod's names for them.
fn ports(rule: &Value) -> Vec<String> {
    let all = rule["ports"].as_array().unwrap().iter();
    all.map(|port| {
        let protocol = text(&port["protocol"]);
        assert!(["TCP", "UDP"].contains(&protocol), "{rule}");
        format!("{protocol} {}", port["port"].as_u64().unwrap())
    })
    .collect()
}

fn rules<'a>(policy: &'a Value, way: &str) -> Vec<&'a Value> {
    assert_eq!(policy["spec"]["policyTypes"], json!(["Ingress", "Egress"]));
    policy["spec"][way].as_array().unwrap().iter().collect()
}

#[tokio::test]
async fn the_network_policies_are_what_the_guide_says() {
    let sets = [
        "networkPolicy.enabled=true",
        "redis.url=",
        "redis.embedded.enabled=true",
    ];
    let chart = Chart::with("minimal", &sets).await;
    let policy = |name: &str| {
        let policy = chart.one("NetworkPolicy", &format!("-{name}"));
        assert_eq!(component(&policy["spec"]["podSelector"]), name);
        policy
    };
    assert_eq!(chart.all("NetworkPolicy").len(), 4);
    let this_namespace = json!([{"podSelector": {}}]);
    let names =
        json!({"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]});

    let router = policy("router");
    let inward = rules(router, "ingress");
    assert_eq!(inward.len(), 2);
    assert_eq!(ports(inward[0]), ["TCP 8080"]);
    assert!(inward[0]["from"].is_null(), "anybody");
    assert_eq!(
        (ports(inward[1]), &inward[1]["from"]),
        (vec!["TCP 9090".into()], &this_namespace)
    );
    let out = rules(router, "egress");
    assert_eq!(out.len(), 3);
    assert_eq!(out[0], &names);
    assert_eq!(
        (ports(out[1]), component(&out[1]["to"][0]["podSelector"])),
        (vec!["TCP 6379".into()], "redis".into())
    );
    assert_eq!(ports(out[2]), ["TCP 443"]);
    assert_eq!(
        out[2]["to"],
        json!([{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"]}}])
    );

    let coordinator = policy("coordinator");
    let inward = rules(coordinator, "ingress");
    assert_eq!(inward.len(), 1);
    assert_eq!(
        (ports(inward[0]), &inward[0]["from"]),
        (vec!["TCP 9091".into()], &this_namespace)
    );
    assert_eq!(rules(coordinator, "egress"), out[..2]);

    let redis = policy("redis");
    let inward = rules(redis, "ingress");
    assert_eq!(
        (inward.len(), ports(inward[0])),
        (1, vec!["TCP 6379".into()])
    );
    let from = inward[0]["from"].as_array().unwrap().iter();
    let from: Vec<String> = from.map(|one| component(&one["podSelector"])).collect();
    assert_eq!(from, ["router", "coordinator"]);
    assert!(rules(redis, "egress").is_empty());

    let test = policy("test");
    assert!(rules(test, "ingress").is_empty());
    let out = rules(test, "egress");
    assert_eq!((out.len(), out[0]), (2, &names));
    assert_eq!(
        (ports(out[1]), component(&out[1]["to"][0]["podSelector"])),
        (vec!["TCP 8080".into()], "router".into())
    );
    the_guide_names_these_ports(&chart);
}

fn the_guide_names_these_ports(chart: &Chart) {
    let number = |kind: &str, suffix: &str, name: &str| {
        let container = &chart.one(kind, suffix)["spec"]["template"]["spec"]["containers"][0];
        let found = container["ports"]
            .as_array()
            .unwrap()
            .iter()
            .find(|port| port["name"] == name);
        found.unwrap()["containerPort"].to_string()
    };
    let http = number("Deployment", "-router", "http");
    let admin = number("Deployment", "-router", "admin");
    let coordinator = number("Deployment", "-coordinator", "admin");
    let redis = number("StatefulSet", "-redis", "redis");
    let wanted = [
        [
            "routers".to_owned(),
            format!(
                "{http} from `clients` (empty: anybody), {admin} from `metrics` (empty: this namespace)"
            ),
            "names (53), Redis, `upstreams` (443 to 0.0.0.0/0 but 169.254.0.0/16), `extraEgress`"
                .to_owned(),
        ],
        [
            "coordinators".to_owned(),
            format!("{coordinator} from `metrics`"),
            "names (53), Redis".to_owned(),
        ],
        [
            "Redis of the chart".to_owned(),
            format!("{redis} from routers and coordinators"),
            "nothing".to_owned(),
        ],
        [
            "`helm test`".to_owned(),
            "nothing".to_owned(),
            format!("names (53), routers ({http})"),
        ],
    ];
    assert_eq!(table("network"), rows(&wanted));
}

#[tokio::test]
async fn what_the_network_values_name_is_in_the_rules() {
    let chart = Chart::of("production").await;
    let namespace = |name: &str| json!({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}});
    let router = chart.one("NetworkPolicy", "-router");
    let clients = &rules(router, "ingress")[0]["from"];
    assert_eq!(clients[0], namespace("ingress-nginx"));
    // `helm test` is a client, too.
    assert_eq!(component(&clients[1]["podSelector"]), "test");
    assert_eq!(
        rules(router, "ingress")[1]["from"],
        json!([namespace("monitoring")])
    );
    for name in ["-router", "-coordinator"] {
        let redis = rules(chart.one("NetworkPolicy", name), "egress")[1].clone();
        assert_eq!(
            redis,
            json!({"ports": [{"port": 6379, "protocol": "TCP"}], "to": [namespace("data")]})
        );
    }
    let everything = Chart::of("everything").await;
    let out = rules(everything.one("NetworkPolicy", "-router"), "egress");
    assert_eq!(
        out.last().unwrap()["to"],
        json!([{"ipBlock": {"cidr": "10.0.0.7/32"}}])
    );
    assert!(Chart::of("minimal").await.all("NetworkPolicy").is_empty());
}

/// Pods of a rendering: what they are, and their spec.
fn pods(chart: &Chart) -> Vec<(String, &Value)> {
    let owners = ["Deployment", "StatefulSet"]
        .into_iter()
        .flat_map(|kind| chart.all(kind));
    let specs = owners.map(|owner| (owner, &owner["spec"]["template"]["spec"]));
    let bare = chart.all("Pod").into_iter().map(|pod| (pod, &pod["spec"]));
    specs
        .chain(bare)
        .map(|(one, spec)| (text(&one["metadata"]["name"]).to_owned(), spec))
        .collect()
}

#[tokio::test]
async fn no_pod_has_a_privilege_a_token_or_an_unbounded_memory() {
    for values in VALUES {
        let chart = Chart::of(values).await;
        let accounts = chart.all("ServiceAccount");
        assert!(
            accounts
                .iter()
                .all(|one| one["automountServiceAccountToken"] == false),
            "{values}"
        );
        let pods = pods(&chart);
        assert!(pods.len() >= 3, "{values}");
        for (name, spec) in pods {
            assert_eq!(spec["automountServiceAccountToken"], false, "{name}");
            assert_eq!(spec["enableServiceLinks"], false, "{name}");
            assert_eq!(spec["securityContext"]["runAsNonRoot"], true, "{name}");
            assert_eq!(
                spec["securityContext"]["seccompProfile"]["type"], "RuntimeDefault",
                "{name}"
            );
            let user = if name.ends_with("-redis") { 999 } else { 65532 };
            assert_eq!(spec["securityContext"]["runAsUser"], user, "{name}");
            for container in spec["containers"].as_array().unwrap() {
                let security = &container["securityContext"];
                assert_eq!(security["readOnlyRootFilesystem"], true, "{name}");
                assert_eq!(security["allowPrivilegeEscalation"], false, "{name}");
                assert_eq!(security["capabilities"], json!({"drop": ["ALL"]}), "{name}");
                for place in [
                    ["requests", "cpu"],
                    ["requests", "memory"],
                    ["limits", "memory"],
                ] {
                    assert!(
                        container["resources"][place[0]][place[1]].is_string(),
                        "{name}: {place:?}"
                    );
                }
            }
        }
    }
}

#[tokio::test]
async fn pods_of_a_kind_are_kept_apart() {
    let soft = Chart::of("minimal").await;
    let hard = Chart::of("production").await;
    let spec = |chart: &Chart, name: &str| {
        chart.one("Deployment", name)["spec"]["template"]["spec"].clone()
    };
    let apart = &spec(&soft, "-coordinator")["affinity"]["podAntiAffinity"];
    let term = &apart["preferredDuringSchedulingIgnoredDuringExecution"][0]["podAffinityTerm"];
    assert_eq!(term["topologyKey"], "kubernetes.io/hostname");
    assert_eq!(component(&term["labelSelector"]), "coordinator");
    let apart = &spec(&hard, "-coordinator")["affinity"]["podAntiAffinity"];
    let term = &apart["requiredDuringSchedulingIgnoredDuringExecution"][0];
    assert_eq!(term["topologyKey"], "kubernetes.io/hostname");
    assert_eq!(component(&term["labelSelector"]), "coordinator");
    // A third would have no place while two are replaced.
    let strategy = &hard.one("Deployment", "-coordinator")["spec"]["strategy"];
    assert_eq!(
        strategy["rollingUpdate"],
        json!({"maxSurge": 0, "maxUnavailable": 1})
    );
    for (chart, zones) in [(&soft, "ScheduleAnyway"), (&hard, "DoNotSchedule")] {
        let spread = spec(chart, "-router")["topologySpreadConstraints"].clone();
        let keys = [
            ("kubernetes.io/hostname", "ScheduleAnyway"),
            ("topology.kubernetes.io/zone", zones),
        ];
        assert_eq!(spread.as_array().unwrap().len(), keys.len());
        for (one, (key, when)) in spread.as_array().unwrap().iter().zip(keys) {
            assert_eq!(
                (&one["topologyKey"], &one["whenUnsatisfiable"]),
                (&json!(key), &json!(when))
            );
            assert_eq!(component(&one["labelSelector"]), "router");
        }
    }
}

#[tokio::test]
async fn secrets_are_named_and_never_made() {
    for values in VALUES {
        let chart = Chart::of(values).await;
        assert!(chart.all("Secret").is_empty(), "{values}");
        for (name, spec) in pods(&chart) {
            for one in spec["containers"][0]["env"]
                .as_array()
                .into_iter()
                .flatten()
            {
                let value = one["value"].as_str().unwrap_or_default();
                let plain = value.contains('@') && !value.contains("$(REDIS_PASSWORD)@");
                assert!(!plain, "{name}: {one}");
                let secret = ["KEY", "TOKEN", "PASSWORD"];
                if secret.iter().any(|word| text(&one["name"]).contains(word)) {
                    assert!(
                        one["valueFrom"]["secretKeyRef"].is_object(),
                        "{name}: {one}"
                    );
                }
            }
        }
    }
}

#[tokio::test]
async fn the_admin_listener_is_behind_no_way_in() {
    for values in ["production", "everything", "cluster"] {
        let chart = Chart::of(values).await;
        let admin = text(&chart.one("Service", "-admin")["metadata"]["name"]).to_owned();
        let ways = ["Ingress", "HTTPRoute"]
            .into_iter()
            .flat_map(|kind| chart.all(kind));
        let ways: Vec<&Value> = ways.collect();
        assert!(!ways.is_empty(), "{values}");
        for way in ways {
            assert!(!way.to_string().contains(&admin), "{way}");
            let client = admin.trim_end_matches("-admin");
            assert!(
                way.to_string().contains(&format!("\"name\":\"{client}\"")),
                "{way}"
            );
        }
        assert_eq!(chart.one("Service", "-admin")["spec"]["type"], "ClusterIP");
    }
}

#[tokio::test]
async fn an_ingress_is_made_for_streams_as_the_guide_says() {
    let chart = Chart::of("production").await;
    let annotations = &chart.one("Ingress", "")["metadata"]["annotations"];
    let guide = text_of("deploy/README.md");
    let prefix = "nginx.ingress.kubernetes.io/";
    let mut asserted = 0;
    for (name, value) in annotations.as_object().unwrap() {
        let name = name.strip_prefix(prefix).unwrap();
        if name == "proxy-http-version" {
            continue;
        }
        assert!(
            guide.contains(&format!("`{name}: {value}`")),
            "{name}: {value}"
        );
        asserted += 1;
    }
    assert_eq!(asserted, 8);
    let everything = Chart::of("everything").await;
    let annotations = &everything.one("Ingress", "")["metadata"]["annotations"];
    assert_eq!(annotations["haproxy.org/timeout-server"], "1h");
    assert_eq!(annotations["cert-manager.io/cluster-issuer"], "letsencrypt");
    let route = &everything.one("HTTPRoute", "")["spec"]["rules"][0];
    assert_eq!(
        route["timeouts"],
        json!({"request": "0s", "backendRequest": "0s"})
    );
}

#[tokio::test]
async fn each_alert_tells_what_it_should_and_nothing_else() {
    let chart = Chart::of("production").await;
    let rules = &chart.one("PrometheusRule", "")["spec"];
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    std::fs::write(place("rules.json"), rules.to_string()).unwrap();
    let tests = text_of("tests/deploy/alerts.yaml");
    std::fs::write(place("alerts.yaml"), &tests).unwrap();
    let promtool = |words: &[&str]| {
        let mut command = Command::new("promtool");
        command.args(words).current_dir(dir.path());
        command
    };
    succeed(&mut promtool(&["check", "rules", "rules.json"])).await;
    succeed(&mut promtool(&["test", "rules", "alerts.yaml"])).await;
    for rule in rules["groups"][0]["rules"].as_array().unwrap() {
        let name = text(&rule["alert"]);
        assert!(
            tests.contains(&format!("alertname=\"{name}\"")),
            "{name} is not tested"
        );
        for told in ["summary", "description"] {
            assert!(rule["annotations"][told].is_string(), "{name}");
        }
    }
    // What the guide tells people to look for is there.
    let guide = text_of("deploy/README.md");
    for word in guide
        .split('`')
        .filter(|word| word.starts_with("OmniRoute"))
    {
        assert!(rules.to_string().contains(&format!("\"{word}\"")), "{word}");
    }
}
