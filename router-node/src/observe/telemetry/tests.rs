//! What the variables come to.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use opentelemetry_otlp::Protocol;
use proptest::prelude::*;
use shared_proto::config::Env;

use super::settings::{Settings, read};

struct Given(HashMap<String, String>);

impl Env for Given {
    fn var(&self, name: &str) -> Option<String> {
        self.0.get(name).cloned()
    }

    fn read_file(&self, _: &Path) -> Result<String, String> {
        Err("no files here".to_owned())
    }
}

const ALL: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const TRACES: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";

fn given(vars: &[(&str, &str)]) -> (Option<Settings>, Vec<String>) {
    let vars = vars
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    read(&Given(vars.collect()))
}

/// The settings with an endpoint and `more`, without any warning.
fn on(more: &[(&str, &str)]) -> Settings {
    let mut vars = vec![(ALL, "http://collector:4318")];
    vars.extend(more);
    let (settings, warnings) = given(&vars);
    assert_eq!(warnings, Vec::<String>::new());
    settings.unwrap()
}

#[test]
fn without_an_endpoint_or_switched_off_nothing_is_traced() {
    let endpoint = (ALL, "http://collector:4318");
    let off: [&[(&str, &str)]; 6] = [
        &[],
        &[(ALL, ""), (TRACES, "  ")],
        &[endpoint, ("OTEL_SDK_DISABLED", "true")],
        &[endpoint, ("OTEL_SDK_DISABLED", "TRUE")],
        &[endpoint, ("OTEL_TRACES_EXPORTER", "none")],
        &[
            ("OTEL_SERVICE_NAME", "x"),
            ("OTEL_BSP_SCHEDULE_DELAY", "nonsense"),
        ],
    ];
    for vars in off {
        let (settings, warnings) = given(vars);
        assert!(settings.is_none(), "{vars:?}");
        assert_eq!(warnings, Vec::<String>::new(), "{vars:?}");
    }
    on(&[
        ("OTEL_SDK_DISABLED", "false"),
        ("OTEL_TRACES_EXPORTER", "otlp"),
    ]);
}

#[test]
fn the_path_belongs_to_the_general_endpoint_only() {
    for (vars, address) in [
        (vec![(ALL, "http://c:4318")], "http://c:4318/v1/traces"),
        (vec![(ALL, "https://c/otlp/")], "https://c/otlp/v1/traces"),
        (vec![(TRACES, "http://c:1/x")], "http://c:1/x"),
        (
            vec![(TRACES, "http://c:1"), (ALL, "http://d")],
            "http://c:1/",
        ),
        (
            vec![(TRACES, ""), (ALL, " http://d ")],
            "http://d/v1/traces",
        ),
    ] {
        let (settings, warnings) = given(&vars);
        assert_eq!(settings.unwrap().endpoint.to_string(), address);
        assert!(warnings.is_empty(), "{warnings:?}");
    }
}

#[test]
fn defaults_are_those_of_the_specification() {
    let settings = on(&[]);
    assert_eq!(settings.protocol, Protocol::HttpBinary);
    assert_eq!(settings.timeout, Duration::from_secs(10));
    assert_eq!((settings.queue, settings.batch), (2048, 512));
    assert_eq!(settings.delay, Duration::from_secs(5));
    assert_eq!(format!("{:?}", settings.sampler), "ParentBased(AlwaysOn)");
    assert!(settings.compression.is_none());
    assert!(settings.parents);
}

#[test]
fn what_is_set_counts_and_what_is_for_traces_goes_first() {
    let settings = on(&[
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "700"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "100"),
        ("OTEL_BSP_SCHEDULE_DELAY", "50"),
        ("OTEL_TRACES_SAMPLER", "traceidratio"),
        ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
        ("OTEL_PROPAGATORS", "baggage"),
    ]);
    assert_eq!(settings.protocol, Protocol::HttpJson);
    assert_eq!(settings.timeout, Duration::from_millis(700));
    assert!(settings.compression.is_some());
    assert_eq!((settings.queue, settings.batch), (100, 100));
    assert_eq!(settings.delay, Duration::from_millis(50));
    assert_eq!(format!("{:?}", settings.sampler), "TraceIdRatioBased(0.25)");
    assert!(!settings.parents);
}

#[test]
fn a_bad_value_is_ignored_and_its_variable_named_without_secrets() {
    for (name, value) in [
        ("OTEL_SDK_DISABLED", "yes"),
        ("OTEL_TRACES_EXPORTER", "zipkin"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "none"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "s3cret,x-key=s3cret"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/s3cret.pem"),
        ("OTEL_BSP_EXPORT_TIMEOUT", "-1"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "99999999999999999999"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "many"),
        ("OTEL_BSP_SCHEDULE_DELAY", "0"),
        ("OTEL_TRACES_SAMPLER", "jaeger_remote"),
        ("OTEL_PROPAGATORS", "b3"),
        ("OTEL_RESOURCE_ATTRIBUTES", "s3cret"),
    ] {
        let (settings, warnings) = given(&[(ALL, "http://c"), (name, value)]);
        assert!(settings.is_some(), "{name}");
        assert_eq!(warnings.len(), 1, "{name}: {warnings:?}");
        assert!(
            warnings[0].starts_with(&format!("{name}: ")),
            "{warnings:?}"
        );
        assert!(!warnings[0].contains("s3cret"), "{warnings:?}");
    }
    let ratio = ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio");
    for bad in ["2", "-0.1", "NaN", "half"] {
        let (settings, warnings) =
            given(&[(ALL, "http://c"), ratio, ("OTEL_TRACES_SAMPLER_ARG", bad)]);
        let sampler = settings.unwrap().sampler;
        assert!(
            format!("{sampler:?}").contains("TraceIdRatioBased(1.0)"),
            "{sampler:?}"
        );
        assert!(
            warnings[0].starts_with("OTEL_TRACES_SAMPLER_ARG: "),
            "{warnings:?}"
        );
    }
}

#[test]
fn a_bad_endpoint_switches_tracing_off_and_is_not_repeated() {
    for bad in [
        "s3cret:4318",
        "ftp://s3cret",
        "http://",
        "//s3cret",
        "http://s3cret bad",
        "s3cret",
    ] {
        for name in [ALL, TRACES] {
            let (settings, warnings) = given(&[(name, bad)]);
            assert!(settings.is_none(), "{bad}");
            assert!(
                warnings[0].starts_with(&format!("{name}: ")),
                "{warnings:?}"
            );
            assert!(!warnings[0].contains("s3cret"), "{warnings:?}");
        }
    }
    let (settings, warnings) = given(&[(ALL, "http://user:s3cret@c")]);
    assert!(settings.is_some());
    assert!(
        warnings[0].starts_with(ALL) && !warnings[0].contains("s3cret"),
        "{warnings:?}"
    );
}

#[test]
fn an_exporter_without_an_endpoint_is_told_what_is_missing() {
    let (settings, warnings) = given(&[("OTEL_TRACES_EXPORTER", "otlp")]);
    assert!(settings.is_none());
    assert!(warnings[0].contains(ALL), "{warnings:?}");
}

const NAMES: [&str; 14] = [
    TRACES,
    "OTEL_SDK_DISABLED",
    "OTEL_TRACES_EXPORTER",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
    "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION",
    "OTEL_EXPORTER_OTLP_TIMEOUT",
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_BSP_EXPORT_TIMEOUT",
    "OTEL_BSP_MAX_QUEUE_SIZE",
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
    "OTEL_TRACES_SAMPLER",
    "OTEL_TRACES_SAMPLER_ARG",
    "OTEL_PROPAGATORS",
    "OTEL_RESOURCE_ATTRIBUTES",
];

proptest! {
    #[test]
    fn no_values_break_the_reader(values in proptest::collection::vec(
        prop_oneof!["\\PC{0,40}", "[a-z0-9=,./:@-]{0,40}", "[0-9.e+-]{1,25}"], NAMES.len())) {
        let mut vars: Vec<(&str, &str)> = NAMES.into_iter().zip(values.iter().map(String::as_str)).collect();
        vars.push((ALL, "http://collector"));
        let (settings, _) = given(&vars);
        if let Some(settings) = settings {
            prop_assert!((1..=100_000).contains(&settings.queue));
            prop_assert!((1..=settings.queue).contains(&settings.batch));
        }
    }
}
