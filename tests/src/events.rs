//! A strict reader of server-sent events, as clients write them.

use serde_json::Value;

/// One event, or one comment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The `event` field; `None` when it was absent.
    pub name: Option<String>,
    /// The `data` lines, joined.
    pub data: String,
}

impl Event {
    /// The data as JSON; null for anything else, such as `[DONE]`.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.data).unwrap_or_default()
    }
}

/// The events of a whole stream. Panics when the stream ends inside an event.
pub fn events(text: &str) -> Vec<Event> {
    let (events, rest) = read(text);
    assert!(
        rest.trim().is_empty() || rest.starts_with(':'),
        "the stream ends inside an event: {rest:?}"
    );
    events
}

/// The comments of a stream, without the colon.
pub fn comments(text: &str) -> Vec<String> {
    let unified = unified(text);
    let comments = unified.lines().filter_map(|line| line.strip_prefix(':'));
    comments.map(|text| text.trim().to_owned()).collect()
}

fn read(text: &str) -> (Vec<Event>, String) {
    let unified = unified(text);
    let mut events = Vec::new();
    let mut rest = unified.as_str();
    while let Some((block, tail)) = rest.split_once("\n\n") {
        rest = tail.trim_start_matches('\n');
        events.extend(event(block));
    }
    (events, rest.to_owned())
}

/// Without a byte order mark, and with one kind of line end.
fn unified(text: &str) -> String {
    let text = text.trim_start_matches('\u{feff}');
    text.replace("\r\n", "\n").replace('\r', "\n")
}

fn event(block: &str) -> Option<Event> {
    let mut name = None;
    let mut data: Option<String> = None;
    for line in block.lines() {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => name = Some(value.to_owned()),
            "data" => match &mut data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                None => data = Some(value.to_owned()),
            },
            _ => {}
        }
    }
    Some(Event { name, data: data? })
}
