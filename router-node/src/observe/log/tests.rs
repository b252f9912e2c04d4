//! Lines are JSON whatever they say, and none is lost before the bound.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, Sender, channel};

use proptest::prelude::*;
use serde_json::{Value, json};
use tracing_subscriber::fmt::MakeWriter as _;
use tracing_subscriber::prelude::*;

use super::line::JsonLine;
use super::sink::{self, Sink};

/// Hands every write on.
struct Told(Sender<Vec<u8>>);

impl Write for Told {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send(bytes.to_vec()).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn told() -> (Sink, Receiver<Vec<u8>>) {
    let (sender, receiver) = channel();
    (sink::start(Told(sender)).unwrap(), receiver)
}

fn text(receiver: &Receiver<Vec<u8>>) -> String {
    let all: Vec<u8> = receiver.try_iter().flatten().collect();
    String::from_utf8(all).unwrap()
}

/// The line that logging makes.
fn line(log: impl FnOnce()) -> String {
    let (sink, receiver) = told();
    let layer = tracing_subscriber::fmt::layer()
        .event_format(JsonLine)
        .with_writer(sink.clone());
    tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), log);
    sink.close();
    text(&receiver)
}

#[test]
fn every_kind_of_field_is_json() {
    let line = line(|| {
        tracing::warn!(
            target: "here",
            text = "a \"quoted\" \\ line\nand\ttab \u{1} ü",
            absent = None::<&str>,
            number = -3_i64,
            count = 7_u64,
            part = 0.5,
            nan = f64::NAN,
            yes = true,
            debug = ?Some("x"),
            shown = %"y",
            r#type = "t",
            "the message"
        );
    });
    assert!(line.ends_with('\n') && line.lines().count() == 1, "{line}");
    let mut value: Value = serde_json::from_str(&line).unwrap();
    let time = value.as_object_mut().unwrap().remove("timestamp").unwrap();
    assert!(time.as_str().unwrap().parse::<jiff::Timestamp>().is_ok());
    let expected = json!({
        "level": "WARN",
        "message": "the message",
        "text": "a \"quoted\" \\ line\nand\ttab \u{1} ü",
        "number": -3,
        "count": 7,
        "part": 0.5,
        "nan": null,
        "yes": true,
        "debug": "Some(\"x\")",
        "shown": "y",
        "type": "t",
        "target": "here",
    });
    assert_eq!(value, expected);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_text_comes_back(text in any::<String>()) {
        let line = line(|| tracing::info!(text = text.as_str(), "x"));
        let value: Value = serde_json::from_str(&line).unwrap();
        prop_assert_eq!(value["text"].as_str(), Some(text.as_str()));
    }
}

#[test]
fn lines_of_all_threads_are_written_whole_and_each_threads_in_order() {
    let (sink, receiver) = told();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let sink = &sink;
            scope.spawn(move || {
                for n in 0..500 {
                    writeln!(Once(sink), "{thread} {n}").unwrap();
                }
            });
        }
    });
    sink.close();
    let text = text(&receiver);
    for thread in 0..4 {
        let prefix = format!("{thread} ");
        let own: Vec<_> = text
            .lines()
            .filter_map(|line| line.strip_prefix(&prefix))
            .map(|n| n.parse::<u32>().unwrap())
            .collect();
        assert_eq!(own, (0..500).collect::<Vec<_>>());
    }
}

/// Formats first, so that a line is one write.
struct Once<'a>(&'a Sink);

impl Write for Once<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.make_writer().write(bytes)
    }

    fn write_fmt(&mut self, text: std::fmt::Arguments<'_>) -> io::Result<()> {
        self.write_all(text.to_string().as_bytes())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Takes nothing until the other end of the second channel is gone.
struct Stuck(Sender<()>, Receiver<()>, Sender<Vec<u8>>);

impl Write for Stuck {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send(()).ok();
        self.1.recv().ok();
        self.2.send(bytes.to_vec()).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_stuck_reader_holds_nobody_up_and_what_it_missed_is_counted() {
    let (began, writing) = channel();
    let (go, wait) = channel();
    let (sender, receiver) = channel();
    let sink = sink::start(Stuck(began, wait, sender)).unwrap();
    writeln!(Once(&sink), "first").unwrap();
    writing.recv().unwrap();
    for n in 0..10_000 {
        writeln!(Once(&sink), "{n}").unwrap();
    }
    drop(go);
    sink.close();
    let text = text(&receiver);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.first(), Some(&"first"));
    let (told, kept): (Vec<&str>, Vec<&str>) =
        lines.iter().skip(1).partition(|line| line.starts_with('{'));
    assert_eq!(kept.len(), 8192, "as many as the queue holds");
    assert_eq!(kept.last(), Some(&"8191"));
    let told: Value = serde_json::from_str(told.first().unwrap()).unwrap();
    assert_eq!(told["dropped"], 1808);
}
