//! An error body, read once: JSON of any wrapping, or text.

use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use super::{Answer, quoted};

/// Whether the client wrote a phrase.
pub(crate) type Says<'a> = &'a dyn Fn(&str) -> bool;

/// Bytes of a body that are looked at as JSON; errors are far smaller.
const JSON_MAX_BYTES: usize = 1 << 20;
/// Bytes of text that are searched for signs.
const TEXT_MAX_BYTES: usize = 64 << 10;
/// Announcements are searched for no further than this.
const PROSE_MAX_BYTES: usize = 8 << 10;
/// Bytes of a plain text that may be shown.
const PLAIN_MAX_BYTES: usize = 4 << 10;
/// Whoever reads an answer gives up at 64 KiB or later: JSON that ends too early
/// and is shorter was not cut by us, leading blanks aside.
const CUT_MIN_BYTES: usize = 63 << 10;
/// Strings that hold JSON that holds strings that hold JSON ...
const LAYERS_MAX: usize = 4;

/// Keys under which upstreams echo what the client or the model wrote, or what
/// someone else's server said: no evidence about the account.
const ECHOES: &[&str] = &[
    "raw",
    "input",
    "messages",
    "prompt",
    "failed_generation",
    "choices",
    "output",
    // Parts of the request, by name.
    "param",
    "parameter",
    "field",
    "loc",
    "location",
    "path",
    "pointer",
    "instance",
];

/// An error body in the forms in which signs are looked for.
#[derive(Debug, Default)]
pub(crate) struct Document {
    /// The JSON, outermost first, each followed by what its strings contained.
    pub layers: Vec<Value>,
    /// `metadata.raw`: what the upstream of a relay said.
    pub raw: Option<String>,
    /// All that the body says, lowercased: the strings of the JSON, else the text.
    pub text: String,
    /// The same without the announcements that the client wrote, where there are any.
    prose: Option<String>,
    /// That of `raw`, likewise.
    raw_prose: Option<String>,
    /// The beginning of a body that isn't JSON, as it was written.
    pub plain: String,
    /// Whether it is a web page.
    pub html: bool,
    /// Whether it is JSON that goes on behind what was read of it.
    pub is_cut: bool,
}

impl Document {
    /// Reads the body of `answer`.
    pub(crate) fn read(answer: &Answer<'_>) -> Self {
        Self::of_body(answer, &|_| false)
    }

    /// Reads the body of `answer` to a request that `says` some of its phrases: JSON
    /// that the client wrote describes no error, and when it wrote of a reset none is
    /// announced.
    pub(crate) fn read_apart(answer: &Answer<'_>, says: Says<'_>) -> Self {
        let mut document = Self::of_body(answer, says);
        document.prose = quoted::blanked(document.head(PROSE_MAX_BYTES), says);
        if let Some(raw) = &document.raw {
            let inner = Self::of_text(raw);
            document.raw_prose = quoted::blanked(inner.head(PROSE_MAX_BYTES), says);
        }
        document
    }

    fn of_body(answer: &Answer<'_>, says: Says<'_>) -> Self {
        let body = answer
            .body
            .strip_prefix(b"\xef\xbb\xbf")
            .unwrap_or(answer.body);
        let body = body.trim_ascii_start();
        let mut document = Self::default();
        if let Some(root) = json(body).or_else(|| event_stream(body, says)) {
            document.add_layer(root, says);
        } else {
            let text = body.get(..TEXT_MAX_BYTES).unwrap_or(body);
            let text = String::from_utf8_lossy(text);
            document.text = text.to_lowercase();
            cut(&text, PLAIN_MAX_BYTES).clone_into(&mut document.plain);
            document.is_cut = body.len() >= CUT_MIN_BYTES && goes_on(body);
        }
        if document.layers.is_empty() {
            document.html = is_html(&document.text)
                || super::headers::get(answer.headers, "content-type")
                    .is_some_and(|t| t.starts_with("text/html") && body.starts_with(b"<"));
        }
        document
    }

    /// Reads a text that may be JSON.
    pub(crate) fn of_text(text: &str) -> Self {
        Self::read(&Answer {
            provider: "",
            status: 0,
            headers: &[],
            body: text.as_bytes(),
        })
    }

    /// Where announcements are looked for.
    pub(crate) fn prose(&self) -> &str {
        match &self.prose {
            Some(prose) => prose,
            None => self.head(PROSE_MAX_BYTES),
        }
    }

    /// The same of what the upstream of a relay said, which `inner` is read from.
    pub(crate) fn raw_prose<'d>(&'d self, inner: &'d Self) -> &'d str {
        match &self.raw_prose {
            Some(prose) => prose,
            None => inner.head(PROSE_MAX_BYTES),
        }
    }

    /// The first `bytes` of the text.
    fn head(&self, bytes: usize) -> &str {
        cut(&self.text, bytes)
    }

    /// The objects that may describe the error, the outermost first: each
    /// layer, and the objects in which upstreams wrap it.
    pub(crate) fn containers(&self) -> impl Iterator<Item = &Map<String, Value>> {
        self.layers.iter().flat_map(containers)
    }

    fn add_layer(&mut self, root: Value, says: Says<'_>) {
        if self.layers.len() >= LAYERS_MAX {
            return;
        }
        let root = match root {
            Value::Array(mut items) if items.len() == 1 => items.pop().unwrap_or(Value::Null),
            other @ (Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_)
            | Value::Object(_)) => other,
        };
        let mut leaves = String::new();
        collect(&root, &mut leaves);
        if self.text.len() < TEXT_MAX_BYTES {
            self.text.push_str(&leaves.to_lowercase());
        }
        let nested = nested(&root, says);
        if self.raw.is_none() {
            self.raw = containers(&root).find_map(raw);
        }
        self.layers.push(root);
        if let Some(inner) = nested {
            self.add_layer(inner, says);
        }
    }
}

/// Whether `body` is JSON as far as it goes, but does not end.
fn goes_on(body: &[u8]) -> bool {
    if !matches!(body.first(), Some(b'{' | b'[')) {
        return false;
    }
    let read = serde_json::from_slice::<IgnoredAny>(body);
    read.is_err_and(|error| error.is_eof())
}

/// The first JSON object, array or string of `body`; what follows is ignored.
fn json(body: &[u8]) -> Option<Value> {
    if !matches!(body.first()?, b'{' | b'[' | b'"') || body.len() > JSON_MAX_BYTES {
        return None;
    }
    let mut values = serde_json::Deserializer::from_slice(body).into_iter::<Value>();
    values.next()?.ok()
}

/// The same of a text inside, unless the client wrote it.
fn own_json(text: &str, says: Says<'_>) -> Option<Value> {
    let text = text.trim_start();
    let value = json(text.as_bytes())?;
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<IgnoredAny>();
    values.next();
    let written = text.get(..values.byte_offset()).unwrap_or(text);
    (!says(written)).then_some(value)
}

/// The first error among the events of a stream, else its first JSON.
fn event_stream(body: &[u8], says: Says<'_>) -> Option<Value> {
    let body = body.get(..JSON_MAX_BYTES).unwrap_or(body);
    let mut first = None;
    for line in body.split(|b| matches!(b, b'\n' | b'\r')) {
        let marked = line.strip_prefix(b"error:");
        let Some(data) = marked.or_else(|| line.strip_prefix(b"data:")) else {
            continue;
        };
        let data = std::str::from_utf8(data).unwrap_or_default();
        let Some(value) = own_json(data, says) else {
            continue;
        };
        if marked.is_some() || tells_error(&value) {
            return Some(value);
        }
        first.get_or_insert(value);
    }
    first
}

fn tells_error(value: &Value) -> bool {
    let set = |key: &str| value.get(key).is_some_and(|v| !v.is_null());
    set("error")
        || value.get("type").and_then(Value::as_str) == Some("error")
        || value
            .pointer("/response/error")
            .is_some_and(|v| !v.is_null())
}

fn containers(layer: &Value) -> impl Iterator<Item = &Map<String, Value>> {
    const WRAPPERS: [&str; 7] = [
        "",
        "/error",
        "/response/error",
        "/detail",
        "/errors/0",
        "/error/error",
        "/base_resp",
    ];
    WRAPPERS
        .iter()
        .filter_map(|path| layer.pointer(path)?.as_object())
}

/// JSON inside a string: the whole layer, its error, or the error's message.
fn nested(layer: &Value, says: Says<'_>) -> Option<Value> {
    let texts = [
        layer.as_str(),
        layer.get("error").and_then(Value::as_str),
        layer.pointer("/error/message").and_then(Value::as_str),
        layer.get("message").and_then(Value::as_str),
        layer.get("detail").and_then(Value::as_str),
    ];
    texts
        .into_iter()
        .flatten()
        .filter(|text| text.trim_start().starts_with(['{', '[']))
        .find_map(|text| own_json(text, says))
}

fn raw(container: &Map<String, Value>) -> Option<String> {
    match container.get("metadata")?.get("raw")? {
        Value::String(text) if text.is_empty() => None,
        Value::String(text) => Some(text.clone()),
        other @ (Value::Object(_) | Value::Array(_)) => Some(other.to_string()),
        Value::Null | Value::Bool(_) | Value::Number(_) => None,
    }
}

/// The strings of `value`, one a line, in the order of the document.
fn collect(value: &Value, into: &mut String) {
    if into.len() >= TEXT_MAX_BYTES {
        return;
    }
    match value {
        Value::String(text) => {
            let room = TEXT_MAX_BYTES.saturating_sub(into.len());
            into.push_str(cut(text, room));
            into.push('\n');
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, into)),
        Value::Object(fields) => fields
            .iter()
            .filter(|(key, _)| !ECHOES.contains(&key.as_str()))
            .for_each(|(_, item)| collect(item, into)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// At most `bytes` bytes of `text`, ending between characters.
pub(crate) fn cut(text: &str, bytes: usize) -> &str {
    text.get(..text.floor_char_boundary(bytes)).unwrap_or(text)
}

fn is_html(lowercase: &str) -> bool {
    let head = cut(lowercase.trim_start(), 1024);
    head.starts_with('<')
        && ["<!doctype", "<html", "<head", "<body", "<title"]
            .iter()
            .any(|tag| head.contains(tag))
}
