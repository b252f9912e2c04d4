//! A reader of the Prometheus text format that objects to what a linter would.

use std::collections::{BTreeMap, BTreeSet};

/// One sample.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The metric's name, with its suffix.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its value.
    pub value: f64,
}

/// A whole exposition.
#[derive(Clone, Debug, Default)]
pub struct Exposition {
    /// The samples in order.
    pub samples: Vec<Sample>,
    types: BTreeMap<String, String>,
    helps: BTreeSet<String>,
}

impl Exposition {
    /// Reads the text; panics at the first line that is not of the format.
    pub fn parse(text: &str) -> Self {
        let mut all = Self::default();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').expect("a TYPE line without a type");
                let before = all.types.insert(name.into(), kind.into());
                assert_eq!(before, None, "{name} has two types");
            } else if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').unwrap_or((rest, ""));
                assert!(!help.is_empty(), "{name} has an empty help");
                all.helps.insert(name.into());
            } else if !line.is_empty() && !line.starts_with('#') {
                all.samples.push(sample(line));
            }
        }
        all
    }

    /// What a linter would say; empty is good.
    pub fn complaints(&self) -> Vec<String> {
        let mut complaints = Vec::new();
        let mut seen = BTreeSet::new();
        for sample in &self.samples {
            let identity = format!("{}{:?}", sample.name, sample.labels);
            if !seen.insert(identity.clone()) {
                complaints.push(format!("{identity} comes twice"));
            }
            if self.family(&sample.name).is_none() {
                complaints.push(format!("{} has no TYPE", sample.name));
            }
        }
        for (name, kind) in &self.types {
            complaints.extend(self.complaints_of(name, kind));
        }
        let names = self.types.keys().filter_map(|name| name.split('_').next());
        let mut prefixes: BTreeSet<&str> = names.collect();
        prefixes.remove("process");
        prefixes.remove("target");
        if prefixes.len() > 1 {
            complaints.push(format!("more than one prefix: {prefixes:?}"));
        }
        complaints
    }

    /// The sum of all samples of a name.
    pub fn sum(&self, name: &str) -> f64 {
        let values = self.samples.iter().filter(|sample| sample.name == name);
        values.map(|sample| sample.value).sum()
    }

    fn complaints_of(&self, name: &str, kind: &str) -> Vec<String> {
        let mut complaints = Vec::new();
        let bare = name.strip_suffix("_total").unwrap_or(name);
        if !self.helps.contains(name) {
            complaints.push(format!("{name} has no HELP"));
        }
        if kind == "counter" {
            let total = format!("{bare}_total");
            let samples = |one: &Sample| one.name == total || one.name.starts_with(&total);
            if !self.samples.is_empty()
                && self.samples.iter().any(|one| one.name.starts_with(bare))
                && !self.samples.iter().any(samples)
            {
                complaints.push(format!("counter {name} does not end in _total"));
            }
        }
        for unit in [
            "_ms",
            "_millis",
            "_milliseconds",
            "_us",
            "_minutes",
            "_kb",
            "_mb",
            "_percent",
        ] {
            if bare.ends_with(unit) {
                complaints.push(format!("{name} is not in a base unit"));
            }
        }
        if name.chars().any(|c| c.is_ascii_uppercase()) {
            complaints.push(format!("{name} has capitals"));
        }
        complaints
    }

    fn family(&self, name: &str) -> Option<&str> {
        let suffixes = [
            "", "_total", "_bucket", "_sum", "_count", "_created", "_info",
        ];
        suffixes.iter().find_map(|suffix| {
            let family = name.strip_suffix(suffix)?;
            let (family, _) = self.types.get_key_value(family)?;
            Some(family.as_str())
        })
    }
}

fn sample(line: &str) -> Sample {
    let end = line.find('}').map_or(0, |at| at + 1);
    let space = line[end..].find(' ').expect("a sample without a value") + end;
    let (series, value) = (&line[..space], line[space..].trim());
    let (name, labels) = match series.split_once('{') {
        Some((name, labels)) => (name, labels.trim_end_matches('}')),
        None => (series, ""),
    };
    let number = value.split_whitespace().next().unwrap_or_default();
    let value = match number {
        "+Inf" => f64::INFINITY,
        number => number
            .parse()
            .unwrap_or_else(|_| panic!("not a number in: {line}")),
    };
    Sample {
        name: name.into(),
        labels: labels_of(labels),
        value,
    }
}

/// Reads `a="x",b="y"`; quotes inside a value are escaped.
fn labels_of(text: &str) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    let mut rest = text.trim_start_matches(',');
    while let Some((name, tail)) = rest.split_once("=\"") {
        let mut end = 0;
        let bytes = tail.as_bytes();
        while end < bytes.len() && bytes[end] != b'"' {
            end += if bytes[end] == b'\\' { 2 } else { 1 };
        }
        labels.insert(
            name.trim().to_owned(),
            tail[..end.min(tail.len())].to_owned(),
        );
        rest = tail.get(end + 1..).unwrap_or("").trim_start_matches(',');
    }
    labels
}
