//! Requests and answers of the three client protocols, so that one test can
//! speak all of them.

mod frames;

use serde_json::{Value, json};

use crate::config::Config;
use crate::events::{Event, events};
use crate::reply::{Finish, Gate, Reply};

/// A client protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Chat completions.
    Chat,
    /// Responses.
    Responses,
    /// Messages.
    Messages,
}

impl Dialect {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Chat, Self::Responses, Self::Messages];

    /// Its short name, which is also the name of its provider in these tests.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Responses => "responses",
            Self::Messages => "messages",
        }
    }

    /// The word of a provider's `protocol`.
    pub const fn protocol(self) -> &'static str {
        match self {
            Self::Chat => "openai",
            Self::Responses => "responses",
            Self::Messages => "anthropic",
        }
    }

    /// Where clients call it.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Responses => "/v1/responses",
            Self::Messages => "/v1/messages",
        }
    }

    /// The model that goes to this dialect's provider.
    pub fn model(self) -> String {
        format!("{}/demo-model", self.name())
    }

    /// A connection of its provider, by a short name.
    pub fn connection(self, short: &str) -> String {
        format!("{}-{short}", self.name())
    }

    /// A smallest request.
    pub fn request(self, model: &str, stream: bool) -> Value {
        match self {
            Self::Chat => json!({"model": model, "stream": stream,
                "messages": [{"role": "user", "content": "ping"}]}),
            Self::Responses => json!({"model": model, "stream": stream, "input": "ping"}),
            Self::Messages => json!({"model": model, "stream": stream, "max_tokens": 64,
                "messages": [{"role": "user", "content": "ping"}]}),
        }
    }

    /// The smallest request to its own provider.
    pub fn ask(self, stream: bool) -> Value {
        self.request(&self.model(), stream)
    }

    /// A whole answer with this text.
    pub fn answer(self, text: &str) -> Value {
        match self {
            Self::Chat => json!({"id": "c1", "object": "chat.completion", "created": 1_700_000_000,
                "model": "demo-model",
                "choices": [{"index": 0, "finish_reason": "stop",
                    "message": {"role": "assistant", "content": text}}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}),
            Self::Responses => frames::response_object("completed", text),
            Self::Messages => json!({"id": "m1", "type": "message", "role": "assistant",
                "model": "demo-model", "content": [{"type": "text", "text": text}],
                "stop_reason": "end_turn", "stop_sequence": null,
                "usage": {"input_tokens": 1, "output_tokens": 1}}),
        }
    }

    /// A whole answer with this text, as the upstream gives it.
    pub fn ok(self, text: &str) -> Reply {
        Reply::json(200, &self.answer(text))
    }

    /// A whole stream with this text, as the upstream gives it.
    pub fn ok_stream(self, text: &str) -> Reply {
        Reply::frames(&self.stream(text))
    }

    /// A whole stream that stops after its text until `gate` opens.
    pub fn held_stream(self, text: &str, gate: &Gate) -> Reply {
        let mut before = self.opening();
        before.push(self.content(text));
        let held = Reply::frames(&before).hold(gate);
        let after = self.closing(text);
        after.iter().fold(held, |reply, frame| reply.send(frame))
    }

    /// A stream that stops after its text for ever.
    pub fn endless_stream(self, text: &str) -> Reply {
        let mut frames = self.opening();
        frames.push(self.content(text));
        Reply::frames(&frames).end(Finish::Hang)
    }

    /// The frames of a whole stream with this text.
    pub fn stream(self, text: &str) -> Vec<String> {
        let mut all = self.opening();
        all.push(self.content(text));
        all.extend(self.closing(text));
        all
    }

    /// What comes before the first content.
    pub fn opening(self) -> Vec<String> {
        frames::opening(self)
    }

    /// One piece of content.
    pub fn content(self, text: &str) -> String {
        frames::content(self, text)
    }

    /// What comes after the last content, in proper order to the end.
    pub fn closing(self, text: &str) -> Vec<String> {
        frames::closing(self, text)
    }

    /// The opening of a tool call and a part of its arguments.
    pub fn half_a_tool_call(self) -> Vec<String> {
        frames::half_a_tool_call(self)
    }

    /// An error event as this protocol's servers send it.
    pub fn error_event(self, kind: &str, message: &str) -> String {
        frames::error_event(self, kind, message)
    }

    /// The text of a stream's content.
    pub fn text_of(self, stream: &str) -> String {
        let pieces = events(stream).into_iter().map(|event| {
            let data = event.json();
            let piece = match self {
                Self::Chat => &data["choices"][0]["delta"]["content"],
                Self::Responses if data["type"] == "response.output_text.delta" => &data["delta"],
                Self::Responses => &Value::Null,
                Self::Messages => &data["delta"]["text"],
            };
            piece.as_str().unwrap_or_default().to_owned()
        });
        pieces.collect()
    }

    /// The text of a whole answer.
    pub fn text_of_answer(self, body: &Value) -> String {
        let text = match self {
            Self::Chat => &body["choices"][0]["message"]["content"],
            Self::Responses => &body["output"][0]["content"][0]["text"],
            Self::Messages => &body["content"][0]["text"],
        };
        text.as_str().unwrap_or_default().to_owned()
    }

    /// Whether an event tells an error as this protocol does.
    pub fn is_error(self, event: &Event) -> bool {
        let data = event.json();
        match self {
            Self::Chat => data["error"]["message"].is_string(),
            Self::Responses => {
                let failed = data["type"] == "response.failed"
                    && data["response"]["error"]["message"].is_string();
                failed && event.name.as_deref() == Some("response.failed")
            }
            Self::Messages => {
                let told = data["type"] == "error" && data["error"]["message"].is_string();
                told && event.name.as_deref() == Some("error")
            }
        }
    }

    /// Whether an event marks the end of a good answer.
    pub fn is_end(self, event: &Event) -> bool {
        match self {
            Self::Chat => event.data == "[DONE]",
            Self::Responses => event.json()["type"] == "response.completed",
            Self::Messages => event.json()["type"] == "message_stop",
        }
    }

    /// Panics unless the stream is a whole good answer with this text.
    pub fn expect_whole(self, stream: &str, text: &str) {
        let events = events(stream);
        let errors = events.iter().filter(|event| self.is_error(event)).count();
        let ends = events.iter().filter(|event| self.is_end(event)).count();
        assert_eq!(errors, 0, "{self:?}: an error in {stream}");
        assert_eq!(ends, 1, "{self:?}: not one end in {stream}");
        assert_eq!(self.text_of(stream), text, "{self:?}: {stream}");
    }

    /// Panics unless the stream has this text, then one error, and no good end.
    pub fn expect_broken(self, stream: &str, text: &str) {
        let events = events(stream);
        let ends = events.iter().filter(|event| self.is_end(event)).count();
        assert_eq!(self.text_of(stream), text, "{self:?}: {stream}");
        assert_eq!(ends, 0, "{self:?}: a good end in {stream}");
        let errors = events.iter().filter(|event| self.is_error(event)).count();
        assert_eq!(errors, 1, "{self:?}: not one error in {stream}");
        let last = events.last().is_some_and(|event| self.is_error(event));
        assert!(last, "{self:?}: something after the error in {stream}");
    }
}

/// Adds this dialect's provider and its connections, in order of priority.
#[must_use]
pub fn add_provider(
    config: Config,
    dialect: Dialect,
    url: &str,
    shorts: &[&str],
    more: Value,
) -> Config {
    let mut config = config.provider_with(dialect.name(), dialect.protocol(), url, more);
    for (at, short) in shorts.iter().enumerate() {
        let id = dialect.connection(short);
        config = config.connection_with(&id, dialect.name(), json!({"priority": at + 1}));
    }
    config
}

/// A provider for each dialect, all at `url`, each with these connections.
pub fn all_providers(url: &str, shorts: &[&str], more: &Value) -> Config {
    Dialect::ALL
        .into_iter()
        .fold(Config::new(), |config, dialect| {
            add_provider(config, dialect, url, shorts, more.clone())
        })
}
