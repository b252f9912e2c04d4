//! The chart as the real helm renders it: lint, the schemas of three versions
//! of Kubernetes and of two extensions, golden files, and what is refused.

use std::collections::BTreeSet;

use cluster_tests::chart::{
    Chart, RELEASE, VALUES, helm, installed, of_values, repository, run, succeed, text_of,
};
use tokio::process::Command;

/// The oldest version that the chart takes, one between, and the newest there is.
const KUBERNETES: &str = "1.30,1.34,1.37";

#[tokio::test]
async fn every_value_file_passes_the_strict_lint_and_is_known_here() {
    let files: BTreeSet<String> = std::fs::read_dir(repository("helm/ci"))
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    let known = VALUES.map(|name| format!("{name}-values.yaml"));
    assert_eq!(files, BTreeSet::from(known));
    for name in VALUES {
        let told = succeed(&mut of_values(&["lint", "--strict"], name, &[])).await;
        assert!(
            told.contains("1 chart(s) linted, 0 chart(s) failed"),
            "{name}: {told}"
        );
        assert!(!told.contains("[WARNING]"), "{name}: {told}");
    }
}

/// `UPDATE_GOLDEN=1` writes them anew.
#[tokio::test]
async fn the_rendered_objects_are_those_of_the_golden_files() {
    for name in VALUES {
        let chart = Chart::of(name).await;
        let path = format!("tests/data/helm/{name}.yaml");
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(repository(&path), &chart.text).unwrap();
        }
        let golden = text_of(&path);
        let differs = chart.text.lines().zip(golden.lines()).enumerate();
        let first = differs.into_iter().find(|(_, (now, then))| now != then);
        assert!(
            chart.text == golden,
            "{path} differs at {first:?}; after a wanted change: UPDATE_GOLDEN=1 scripts/test helm_render"
        );
    }
}

#[tokio::test]
async fn every_object_is_valid_in_three_versions_of_kubernetes() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(installed("deploy-tools/venv/bin/python"));
    command
        .arg(repository("tests/deploy/validate.py"))
        .arg(KUBERNETES);
    for name in VALUES {
        let file = dir.path().join(name);
        std::fs::write(&file, Chart::of(name).await.text).unwrap();
        command.arg(file);
    }
    let told = succeed(&mut command).await;
    assert_eq!(told.lines().count(), 3, "{told}");
    // And it does find faults.
    let file = dir.path().join("broken");
    let broken = text_of("tests/data/helm/minimal.yaml").replace("maxSurge", "maxSurges");
    std::fs::write(&file, broken).unwrap();
    let mut command = Command::new(installed("deploy-tools/venv/bin/python"));
    command
        .arg(repository("tests/deploy/validate.py"))
        .arg(KUBERNETES);
    let output = run(command.arg(file)).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("maxSurges"));
}

#[tokio::test]
async fn objects_of_extensions_are_valid_by_their_definitions() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(installed("sdk/node"));
    command.arg(installed("deploy-tools/crds.mjs"));
    let mut kinds = BTreeSet::new();
    for name in VALUES {
        let chart = Chart::of(name).await;
        for (at, object) in chart.objects.iter().enumerate() {
            let api = object["apiVersion"].as_str().unwrap();
            let built_in =
                !api.contains('.') || api.split('/').next().unwrap().ends_with(".k8s.io");
            if built_in && !api.starts_with("gateway.") {
                continue;
            }
            kinds.insert(object["kind"].as_str().unwrap().to_owned());
            let file = dir.path().join(format!("{name}-{at}.json"));
            std::fs::write(&file, object.to_string()).unwrap();
            command.arg(file);
        }
    }
    let known = ["HTTPRoute", "PrometheusRule", "ServiceMonitor"].map(str::to_owned);
    assert_eq!(kinds, BTreeSet::from(known));
    succeed(&mut command).await;
}

#[tokio::test]
async fn what_is_packaged_is_the_chart_alone() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = helm(&["package"]);
    command
        .arg(repository("helm"))
        .arg("--destination")
        .arg(dir.path());
    succeed(&mut command).await;
    let mut list = Command::new("tar");
    let version = env!("CARGO_PKG_VERSION");
    list.arg("-tzf")
        .arg(dir.path().join(format!("omniroute-{version}.tgz")));
    let about = text_of("helm/Chart.yaml");
    assert!(
        about.contains(&format!("\nappVersion: {version}\n")),
        "{about}"
    );
    let listed = succeed(&mut list).await;
    assert!(listed.contains("omniroute/values.schema.json"), "{listed}");
    assert!(listed.contains("omniroute/templates/NOTES.txt"), "{listed}");
    assert!(!listed.contains("/ci/"), "{listed}");
}

/// Values that make no sense, on top of the minimal ones, and what is said.
const REFUSED: &[(&[&str], &str)] = &[
    (
        &["router.replicaCount=-1"],
        "at '/router/replicaCount': minimum: got -1, want 1",
    ),
    (
        &["router.replicaCount=0"],
        "at '/router/replicaCount': minimum: got 0, want 1",
    ),
    (
        &["router.replicaCount=two"],
        "at '/router/replicaCount': got string, want integer",
    ),
    (
        &["coordinator.replicaCount=-2"],
        "at '/coordinator/replicaCount': minimum: got -2, want 0",
    ),
    (
        &["router.replicas=3"],
        "additional properties 'replicas' not allowed",
    ),
    (
        &["replicaCount=3"],
        "additional properties 'replicaCount' not allowed",
    ),
    (
        &["ingress.enabled=true"],
        "an ingress needs ingress.host, the name that clients call, such as llm.example.com",
    ),
    (
        &[
            "ingress.enabled=true",
            "ingress.host=https://llm.example.com",
        ],
        "a name of the DNS, such as llm.example.com, without a scheme or a path",
    ),
    (
        &["ingress.controller=envoy"],
        "value must be one of 'nginx', 'haproxy', 'other'",
    ),
    (
        &["gateway.enabled=true"],
        "a route needs gateway.parentRefs, the gateways it belongs to",
    ),
    (
        &["redis.url="],
        "say where Redis is: redis.url, redis.existingSecret, or redis.embedded.enabled for an evaluation",
    ),
    (
        &["redis.embedded.enabled=true"],
        "leave redis.url empty while redis.embedded.enabled is true, or switch that off",
    ),
    (
        &["redis.existingSecret=mine"],
        "leave redis.url empty: the URL comes from the Secret that redis.existingSecret names",
    ),
    (
        &[
            "redis.url=",
            "redis.existingSecret=mine",
            "redis.embedded.enabled=true",
        ],
        "leave redis.existingSecret empty while redis.embedded.enabled is true",
    ),
    (
        &["redis.url=http://redis:6379"],
        "begin redis.url with redis://, rediss://, redis+sentinel://",
    ),
    (
        &["redis.url=redis.data.svc:6379"],
        "begin redis.url with redis://, rediss://, redis+sentinel://",
    ),
    (
        &["redis.url=redis://:hunter2@redis:6379/0"],
        "redis.url must not hold a password: put the URL into a Secret and name it in redis.existingSecret",
    ),
    (
        &["redis.url=redis+sentinel://s1/m/0?sentinelPassword=hunter2"],
        "redis.url must not hold a password",
    ),
    (
        &["redis.url=redis://:$(REDIS_PASSWORD)@redis:6379/0"],
        "redis.url says $(REDIS_PASSWORD), but redis.passwordSecret.name names no Secret that has it",
    ),
    (
        &["redis.passwordSecret.name=mine"],
        "redis.url does not say where its password goes",
    ),
    (
        &["redis.tlsSecret=mine"],
        "redis.tlsSecret is set, but redis.url is not encrypted: begin it with rediss",
    ),
    (
        &["redis.url=rediss://r:6379/0?ca=/etc/omniroute/redis-tls/ca.crt"],
        "redis.tlsSecret names no Secret to mount there",
    ),
    (
        &[
            "router.autoscaling.minReplicas=9",
            "router.autoscaling.maxReplicas=3",
        ],
        "router.autoscaling.minReplicas (9) is more than router.autoscaling.maxReplicas (3): swap them",
    ),
    (
        &[
            "router.autoscaling.enabled=true",
            "router.autoscaling.targetRequestsInFlight=0",
            "router.autoscaling.targetCPUUtilizationPercentage=0",
        ],
        "router.autoscaling has nothing to scale on",
    ),
    (
        &[
            "router.autoscaling.enabled=true",
            "router.resources.requests.cpu=null",
        ],
        "is a share of router.resources.requests.cpu, which is not set",
    ),
    (
        &["router.drain.endpointsSeconds=0"],
        "at '/router/drain/endpointsSeconds': minimum: got 0, want 1",
    ),
    (
        &["router.drain.seconds=7200"],
        "at '/router/drain/seconds': maximum: got 7,200, want 3,600",
    ),
    (
        &["router.podDisruptionBudget.maxUnavailable=0"],
        "minimum: got 0, want 1",
    ),
    (
        &["secrets.existingSecret="],
        "config reads the variable OMNIROUTE_CLIENT_KEY, and nothing sets it: put it into a Secret",
    ),
    (
        &[
            "secrets.existingSecret=",
            "config.apiKeys[0].id=a",
            "config.apiKeys[0].key.file=/etc/omniroute/secrets/a",
        ],
        "secrets.existingSecret names no Secret to mount there",
    ),
    (&["config.apiKeys=null"], "config.apiKeys is empty"),
    (
        &["config.server.listen=0.0.0.0:80"],
        "leave out config.server.listen: the chart sets it",
    ),
    (
        &["config.server.adminListen=0.0.0.0:80"],
        "leave out config.server.adminListen: the chart sets it",
    ),
    (
        &["config.server.drainTimeoutMs=1000"],
        "leave out config.server.drainTimeoutMs: set router.drain.seconds",
    ),
    (
        &["config.store.url=embedded:memory"],
        "leave out config.store.url: set redis.url",
    ),
    (&["image.digest=latest"], "does not match pattern"),
    (
        &[
            "image.tag=1.0.0",
            "image.digest=sha256:0123456789012345678901234567890123456789012345678901234567890123",
        ],
        "image.tag does nothing beside image.digest",
    ),
    (
        &["config.server.adminToken=hunter2"],
        "config.server.adminToken is a secret in plain text, and would be in a ConfigMap",
    ),
    (
        &["config.apiKeys[0].id=a", "config.apiKeys[0].key=hunter2"],
        "config.apiKeys[0].key is a secret in plain text",
    ),
    (
        &[
            "config.connections[0].id=a",
            "config.connections[0].apiKey=hunter2",
        ],
        "config.connections[0].apiKey is a secret in plain text",
    ),
    (
        &[
            "config.connections[0].id=a",
            "config.connections[0].oauth.refreshToken=hunter2",
        ],
        "config.connections[0].oauth.refreshToken is a secret in plain text",
    ),
    (
        &[
            "config.connections[0].id=a",
            "config.connections[0].proxyUrl=http://me:hunter2@proxy:3128",
        ],
        "config.connections[0].proxyUrl is a secret in plain text",
    ),
    (
        &[
            "router.extraEnv[0].name=OMNIROUTE_STORE_URL",
            "router.extraEnv[0].value=embedded:memory",
        ],
        "leave OMNIROUTE_STORE_URL out of router.extraEnv: the chart sets it",
    ),
    (
        &[
            "secrets.existingSecret=",
            "router.extraEnv[0].name=OMNIROUTE_CLIENT_KEY",
            "router.extraEnv[0].value=x",
        ],
        "which router.extraEnv sets but coordinator.extraEnv does not",
    ),
    (
        &[
            "networkPolicy.enabled=true",
            "redis.url=rediss://cache:6380/0",
        ],
        "redis.url leads to port 6380, which networkPolicy.redis.ports does not open",
    ),
    (&["nameOverride=LLM Router"], "at '/nameOverride'"),
    (
        &["commonLabels.app\\.kubernetes\\.io/name=mine"],
        "invalid propertyName 'app.kubernetes.io/name'",
    ),
    (&["config=null"], "missing property 'config'"),
    (
        &["service.port=70000"],
        "at '/service/port': maximum: got 70,000, want 65,535",
    ),
    (
        &["networkPolicy.upstreams.ports=443"],
        "at '/networkPolicy/upstreams/ports': got number, want array",
    ),
];

#[tokio::test]
async fn each_bad_value_is_refused_with_a_message_that_helps() {
    for (sets, wanted) in REFUSED {
        let output = run(&mut of_values(&["template", RELEASE], "minimal", sets)).await;
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{sets:?} passes");
        assert!(told.contains(wanted), "{sets:?}: {told}");
        assert!(!told.contains("hunter2"), "{sets:?}: {told}");
        // The lint says the same of what the schema refuses; it lets templates' own refusals pass.
        if told.contains("specifications of the schema") {
            let output = run(&mut of_values(&["lint"], "minimal", sets)).await;
            assert!(!output.status.success(), "{sets:?} passes the lint");
        }
    }
}

#[tokio::test]
async fn all_that_cant_be_compared_in_a_schema_is_told_at_once() {
    let sets = [
        "secrets.existingSecret=",
        "redis.tlsSecret=mine",
        "router.autoscaling.minReplicas=99",
    ];
    let output = run(&mut of_values(&["template", RELEASE], "minimal", &sets)).await;
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(told.matches("\n  - ").count(), 3, "{told}");
}

#[tokio::test]
async fn the_notes_end_an_installation_with_three_commands() {
    for name in VALUES {
        let mut command = of_values(&["install", RELEASE, "--dry-run=client"], name, &[]);
        let told = succeed(&mut command).await;
        let notes = told.split("\nNOTES:\n").nth(1).unwrap();
        for step in [
            "1. Wait",
            "kubectl -n llm rollout status deployment/",
            "2. Ask",
            "helm -n llm test rel --logs",
            "3. Call it",
            "curl -sS http",
        ] {
            assert!(notes.contains(step), "{name}: {notes}");
        }
        assert_eq!(
            notes.contains("FOR EVALUATION"),
            ["evaluation", "everything"].contains(&name),
            "{notes}"
        );
    }
}

#[tokio::test]
async fn a_changed_configuration_changes_the_pods_unless_told_otherwise() {
    let sum = |chart: &Chart, suffix: &str| {
        let template = &chart.one("Deployment", suffix)["spec"]["template"];
        template["metadata"]["annotations"]["checksum/config"].clone()
    };
    let (first, same) = (Chart::of("minimal").await, Chart::of("minimal").await);
    let other = Chart::with("minimal", &["config.settings.maxAttempts=5"]).await;
    for suffix in ["-router", "-coordinator"] {
        assert_eq!(sum(&first, suffix), sum(&same, suffix));
        assert_ne!(sum(&first, suffix), sum(&other, suffix));
    }
    let still = Chart::of("cluster").await;
    assert!(sum(&still, "-router").is_null());
}
