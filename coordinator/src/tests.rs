//! What the program says instead of running.

use std::collections::HashMap;
use std::path::Path;

use clap::Parser;
use shared_proto::config::Env;

use super::{Error, Options, plan};

/// The options as a command line gives them.
#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    options: Options,
}

/// Variables and files by name.
struct Given(HashMap<&'static str, &'static str>);

impl Given {
    fn new<const N: usize>(entries: [(&'static str, &'static str); N]) -> Self {
        Self(HashMap::from(entries))
    }
}

impl Env for Given {
    fn var(&self, name: &str) -> Option<String> {
        self.0.get(name).map(|value| (*value).to_owned())
    }

    fn read_file(&self, path: &Path) -> Result<String, String> {
        let found = path.to_str().and_then(|name| self.0.get(name));
        found.map_or_else(
            || Err("no such file".to_owned()),
            |text| Ok((*text).to_owned()),
        )
    }
}

fn outcome(arguments: &[&str], given: &Given) -> Error {
    let arguments = ["coordinator"].iter().chain(arguments);
    plan(&Line::try_parse_from(arguments).unwrap().options, given).unwrap_err()
}

#[test]
fn beside_an_embedded_store_there_is_nothing_to_coordinate() {
    let error = outcome(&[], &Given::new([]));
    assert_eq!(error.exit_code(), 2);
    assert_eq!(
        error.to_string(),
        "nothing to coordinate: store.url is embedded:./omniroute-data, and an embedded store \
         belongs to one router process, which does the coordinator's duties itself; a coordinator \
         needs a shared store (redis://, rediss://, redis+sentinel:// or redis+cluster://)"
    );
}

#[test]
fn the_option_goes_before_the_variable_and_the_variable_before_the_file() {
    let file = ("c.yaml", "store: {url: 'embedded:from-file'}");
    let variable = ("OMNIROUTE_STORE_URL", "embedded:from-variable");
    let store = |arguments: &[&str], given: &Given| {
        let outcome = outcome(arguments, given);
        let Error::Embedded(store) = outcome else {
            panic!("{outcome:?}");
        };
        store
    };
    let named = ["--config", "c.yaml"];
    assert_eq!(store(&named, &Given::new([file])), "embedded:from-file");
    let by_variable = Given::new([file, ("OMNIROUTE_CONFIG", "c.yaml")]);
    assert_eq!(store(&[], &by_variable), "embedded:from-file");
    let both = Given::new([file, variable]);
    assert_eq!(store(&named, &both), "embedded:from-variable");
    let all = ["--config", "c.yaml", "--store", "embedded:memory"];
    assert_eq!(store(&all, &both), "embedded:memory");
}

#[test]
fn a_broken_configuration_is_refused_with_every_problem() {
    let text = "server: {listn: '127.0.0.1:1'}\nstore: {url: 'redis://user:s3cret@host/one'}\n";
    let error = outcome(&["--config", "c.yaml"], &Given::new([("c.yaml", text)]));
    assert_eq!(error.exit_code(), 1);
    let told = error.to_string();
    assert!(told.contains("\nc.yaml:1:"), "{told}");
    assert!(told.contains("\nc.yaml:2:"), "{told}");
    assert!(!told.contains("s3cret"), "{told}");
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let error = outcome(&["--config", "gone.yaml"], &Given::new([]));
    assert_eq!(error.exit_code(), 1);
    assert!(error.to_string().ends_with("\ngone.yaml: no such file"));
}

#[test]
fn the_listen_address_is_its_own_and_has_to_be_one() {
    // A router would need keys there.
    let error = outcome(&["--listen", "0.0.0.0:9090"], &Given::new([]));
    assert_eq!(error.exit_code(), 2);
    Line::try_parse_from(["coordinator", "--listen", "everywhere"]).unwrap_err();
}
