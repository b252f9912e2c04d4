//! What was streamed of each text of a response, so that a closing event's
//! surplus can be told and half a tool call is noticed.

use super::wire::Event;
use crate::stream::arguments::{Balance, Print};
use crate::stream::dialect::MAX_TRACKED;

/// The texts that come as `.delta` and `.done`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Text,
    Refusal,
    FunctionArguments,
    McpArguments,
    ToolInput,
    Reasoning,
    Summary,
}

impl Part {
    const ALL: [Self; 7] = [
        Self::Text,
        Self::FunctionArguments,
        Self::Reasoning,
        Self::Summary,
        Self::Refusal,
        Self::McpArguments,
        Self::ToolInput,
    ];

    /// The event type without `.delta` or `.done`.
    pub(crate) const fn stem(self) -> &'static str {
        match self {
            Self::Text => "response.output_text",
            Self::Refusal => "response.refusal",
            Self::FunctionArguments => "response.function_call_arguments",
            Self::McpArguments => "response.mcp_call_arguments",
            Self::ToolInput => "response.custom_tool_call_input",
            Self::Reasoning => "response.reasoning_text",
            Self::Summary => "response.reasoning_summary_text",
        }
    }

    /// The part an event type is about.
    pub(crate) fn of_stem(stem: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|part| part.stem() == stem)
    }

    /// Whether the text is JSON.
    pub(crate) const fn is_json(self) -> bool {
        matches!(self, Self::FunctionArguments | Self::McpArguments)
    }

    /// The whole text as a closing event gives it.
    pub(crate) fn whole_text<'e>(self, event: &'e Event<'_>) -> Option<&'e str> {
        match self {
            Self::Text | Self::Reasoning | Self::Summary => event.text.as_str(),
            Self::Refusal => event.refusal.as_str(),
            Self::FunctionArguments | Self::McpArguments => event.arguments.as_str(),
            Self::ToolInput => event.input.as_str(),
        }
    }
}

/// Which text: its kind, its item by output index or else by id, its part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    part: Part,
    item: Result<u64, Print>,
    index: u64,
}

impl Key {
    /// The key of a `.delta` or `.done`.
    pub(crate) fn of_event(event: &Event<'_>, part: Part) -> Self {
        Self::new(event, event.item_id.as_str(), part)
    }

    /// The key of an item that was added or is done.
    pub(crate) fn of_item(event: &Event<'_>, part: Part) -> Self {
        let item = event.item.0.as_ref();
        Self::new(event, item.and_then(super::wire::Item::id), part)
    }

    fn new(event: &Event<'_>, id: Option<&str>, part: Part) -> Self {
        let index = event.content_index.0.or(event.summary_index.0);
        let by_id = || {
            let mut print = Print::default();
            print.feed(id.unwrap_or_default());
            print
        };
        Self {
            part,
            item: event.output_index.0.ok_or_else(by_id),
            index: index.unwrap_or(0),
        }
    }
}

#[derive(Clone, Debug)]
struct Track {
    key: Key,
    print: Print,
    balance: Balance,
    closed: bool,
}

/// The texts of one response, in order of appearance.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tracks(Vec<Track>);

impl Tracks {
    /// A text is about to come.
    pub(crate) fn begin(&mut self, key: Key) {
        self.find_or_add(key);
    }

    /// A fragment of a text.
    pub(crate) fn feed(&mut self, key: Key, text: &str) {
        if let Some(track) = self.find_or_add(key) {
            track.print.feed(text);
            if key.part.is_json() {
                track.balance.feed(text);
            }
        }
    }

    /// The text is whole. What `whole` adds to the fragments, if anything.
    pub(crate) fn finish<'t>(&mut self, key: &Key, whole: Option<&'t str>) -> Option<&'t str> {
        let track = self.find(key)?;
        let missing = track.print.missing(whole?);
        if let Some(missing) = missing {
            track.print.feed(missing);
            if key.part.is_json() {
                track.balance.feed(missing);
            }
        }
        missing
    }

    /// The item the text belongs to is done.
    pub(crate) fn close(&mut self, key: &Key) {
        if let Some(track) = self.find(key) {
            track.closed = true;
        }
    }

    /// Whether the arguments of a call stop in the middle.
    pub(crate) fn any_half_call(&self) -> bool {
        self.0.iter().any(|track| !track.balance.closed())
    }

    /// Whether a call was begun whose item is not done.
    pub(crate) fn any_call_open(&self) -> bool {
        self.any_half_call()
            || self.0.iter().any(|track| {
                let call = track.key.part.is_json() || track.key.part == Part::ToolInput;
                call && !track.closed
            })
    }

    fn find(&mut self, key: &Key) -> Option<&mut Track> {
        self.0.iter_mut().rev().find(|track| track.key == *key)
    }

    fn find_or_add(&mut self, key: Key) -> Option<&mut Track> {
        let slot = match self.0.iter().rposition(|track| track.key == key) {
            Some(slot) => slot,
            None if self.0.len() < MAX_TRACKED => {
                self.0.push(Track {
                    key,
                    print: Print::default(),
                    balance: Balance::default(),
                    closed: false,
                });
                self.0.len().saturating_sub(1)
            }
            None => return None,
        };
        self.0.get_mut(slot)
    }
}
