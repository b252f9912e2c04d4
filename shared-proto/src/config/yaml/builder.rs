//! Builds the tree from the parser's events, within bounds of depth and size.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span, StrInput, Tag};

use super::super::problem::shorten;
use super::{Entry, Node, Value, scalar};

/// Deepest nesting.
const MAX_DEPTH: usize = 64;
/// Most values, those that aliases repeat included.
const MAX_NODES: usize = 500_000;
/// What is said of a tag. The tag itself is not shown: it may be a secret that
/// wants quotes.
const TAG: &str = "a tag does not fit here; a text that begins with `!` needs quotes";

/// A fault and its place.
pub(super) struct Fault {
    pub(super) line: usize,
    pub(super) column: usize,
    pub(super) message: String,
}

impl Fault {
    fn at(span: &Span, message: impl Into<String>) -> Self {
        Self {
            line: span.start.line(),
            column: span.start.col().saturating_add(1),
            message: message.into(),
        }
    }
}

/// An open list or mapping.
enum Frame {
    List {
        node: Node,
        items: Vec<Node>,
        anchor: usize,
    },
    Map {
        node: Node,
        entries: Vec<Entry>,
        key: Option<Entry>,
        seen: HashMap<String, usize>,
        anchor: usize,
    },
}

/// What an anchor stands for, with its size and height.
struct Anchored {
    node: Node,
    size: usize,
    height: usize,
}

/// Builds the tree from the parser's events.
#[derive(Default)]
pub(super) struct Builder {
    root: Option<Node>,
    stack: Vec<Frame>,
    anchors: HashMap<usize, Anchored>,
    nodes: usize,
    documents: usize,
    faults: Vec<Fault>,
}

impl Builder {
    /// The tree of one document, as far as it could be built, and every fault.
    pub(super) fn read(text: &str) -> (Option<Node>, Vec<Fault>) {
        let mut builder = Self::default();
        if let Err(fault) = builder.run(text) {
            builder.root = None;
            builder.faults.push(fault);
        }
        (builder.root, builder.faults)
    }

    fn run(&mut self, text: &str) -> Result<(), Fault> {
        let mut parser: Parser<'_, StrInput<'_>> = Parser::new_from_str(text);
        while let Some(event) = parser.next_event() {
            let (event, span) = event.map_err(|fault| explain(text, &fault))?;
            if !self.event(event, &span)? {
                break;
            }
        }
        Ok(())
    }

    /// Takes one event; false ends the reading.
    fn event(&mut self, event: Event<'_>, span: &Span) -> Result<bool, Fault> {
        match event {
            Event::Nothing | Event::StreamStart | Event::DocumentEnd => {}
            Event::StreamEnd => return Ok(false),
            Event::DocumentStart(_) => {
                self.documents = self.documents.saturating_add(1);
                if self.documents > 1 {
                    self.faults.push(Fault::at(
                        span,
                        "a second YAML document; the file may hold one",
                    ));
                    return Ok(false);
                }
            }
            Event::Alias(id) => self.alias(id, span)?,
            Event::Scalar(text, style, anchor, tag) => {
                let value = match tag {
                    None if style == ScalarStyle::Plain => scalar::plain(&text),
                    None => Value::Text(text.into_owned()),
                    Some(tag) => tagged(&text, style, &tag).ok_or_else(|| Fault::at(span, TAG))?,
                };
                self.add(node_at(span, value), anchor, span)?;
            }
            Event::SequenceStart(anchor, tag) => {
                self.open(tag.as_deref(), "seq", span)?;
                let node = node_at(span, Value::Null);
                let items = Vec::new();
                self.stack.push(Frame::List {
                    node,
                    items,
                    anchor,
                });
            }
            Event::MappingStart(anchor, tag) => {
                self.open(tag.as_deref(), "map", span)?;
                self.stack.push(Frame::Map {
                    node: node_at(span, Value::Null),
                    entries: Vec::new(),
                    key: None,
                    seen: HashMap::new(),
                    anchor,
                });
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(span)?,
        }
        Ok(true)
    }

    fn open(&self, tag: Option<&Tag>, own: &str, span: &Span) -> Result<(), Fault> {
        if let Some(tag) = tag
            && !(tag.is_yaml_core_schema() && tag.suffix == own)
        {
            return Err(Fault::at(span, TAG));
        }
        if self.stack.len() >= MAX_DEPTH {
            let message = format!("nested deeper than {MAX_DEPTH} levels");
            return Err(Fault::at(span, message));
        }
        Ok(())
    }

    fn close(&mut self, span: &Span) -> Result<(), Fault> {
        let (node, anchor) = match self.stack.pop() {
            None => return Ok(()),
            Some(Frame::List {
                mut node,
                items,
                anchor,
            }) => {
                node.value = Value::List(items);
                (node, anchor)
            }
            Some(Frame::Map {
                mut node,
                entries,
                anchor,
                key: _,
                seen: _,
            }) => {
                node.value = Value::Map(entries);
                (node, anchor)
            }
        };
        self.add(node, anchor, span)
    }

    /// Puts a finished value where it belongs.
    fn add(&mut self, node: Node, anchor: usize, span: &Span) -> Result<(), Fault> {
        self.spend(1, span)?;
        if anchor > 0 {
            let (size, height) = measure(&node);
            self.spend(size, span)?;
            let copy = node.clone();
            self.anchors.insert(
                anchor,
                Anchored {
                    node: copy,
                    size,
                    height,
                },
            );
        }
        let faults = &mut self.faults;
        match self.stack.last_mut() {
            None => self.root = Some(node),
            Some(Frame::List { items, .. }) => items.push(node),
            Some(Frame::Map {
                entries, key, seen, ..
            }) => match key.take() {
                None => {
                    let name = key_text(&node.value).ok_or_else(|| Fault {
                        line: node.line,
                        column: node.column,
                        message: "a key has to be plain text".to_owned(),
                    })?;
                    *key = Some(Entry {
                        key: name,
                        line: node.line,
                        column: node.column,
                        node: node_at(span, Value::Null),
                    });
                }
                Some(mut entry) => {
                    if let Some(first) = seen.get(&entry.key) {
                        let key = shorten(&entry.key);
                        faults.push(Fault {
                            line: entry.line,
                            column: entry.column,
                            message: format!(
                                "`{key}` is given twice; the first is on line {first}"
                            ),
                        });
                    } else {
                        seen.insert(entry.key.clone(), entry.line);
                        entry.node = node;
                        entries.push(entry);
                    }
                }
            },
        }
        Ok(())
    }

    /// Repeats what an anchor stands for.
    fn alias(&mut self, id: usize, span: &Span) -> Result<(), Fault> {
        let Some(anchored) = self.anchors.get(&id) else {
            return Err(Fault::at(span, "an alias without its anchor"));
        };
        let size = anchored.size;
        if self.stack.len().saturating_add(anchored.height) > MAX_DEPTH {
            let message = format!("nested deeper than {MAX_DEPTH} levels");
            return Err(Fault::at(span, message));
        }
        self.spend(size, span)?;
        let repeated = self.anchors.get(&id).map(|anchored| anchored.node.clone());
        repeated.map_or(Ok(()), |node| self.add(node, 0, span))
    }

    fn spend(&mut self, nodes: usize, span: &Span) -> Result<(), Fault> {
        self.nodes = self.nodes.saturating_add(nodes);
        if self.nodes > MAX_NODES {
            let message = format!("more than {MAX_NODES} values, anchors' repetitions included");
            return Err(Fault::at(span, message));
        }
        Ok(())
    }
}

fn node_at(span: &Span, value: Value) -> Node {
    Node {
        line: span.start.line(),
        column: span.start.col().saturating_add(1),
        value,
    }
}

/// Number of values in a tree, and how deep it is.
fn measure(node: &Node) -> (usize, usize) {
    let add = |(size, height): (usize, usize), child: &Node| {
        let (more, below) = measure(child);
        (
            size.saturating_add(more),
            height.max(below.saturating_add(1)),
        )
    };
    match &node.value {
        Value::List(items) => items.iter().fold((1, 1), add),
        Value::Map(entries) => entries.iter().map(|entry| &entry.node).fold((1, 1), add),
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Text(_) => (1, 0),
    }
}

/// The value of a scalar with a tag, if they fit together.
fn tagged(text: &str, style: ScalarStyle, tag: &Tag) -> Option<Value> {
    if !tag.is_yaml_core_schema() {
        return None;
    }
    let value = if style == ScalarStyle::Plain {
        scalar::plain(text)
    } else {
        Value::Text(text.to_owned())
    };
    match (tag.suffix.as_str(), value) {
        ("str", _) => Some(Value::Text(text.to_owned())),
        ("null", value @ Value::Null)
        | ("bool", value @ Value::Bool(_))
        | ("int", value @ Value::Int(_))
        | ("float", value @ (Value::Int(_) | Value::Float(_))) => Some(value),
        _ => None,
    }
}

/// A mapping's key as text; lists and mappings are none.
fn key_text(value: &Value) -> Option<String> {
    match value {
        Value::Text(text) => Some(text.clone()),
        Value::Int(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        Value::Null => Some("null".to_owned()),
        Value::List(_) | Value::Map(_) => None,
    }
}

/// The parser's complaint, or the usual cause behind it.
fn explain(text: &str, fault: &ScanError) -> Fault {
    let mark = fault.marker();
    let line = mark.line();
    let tab = |number: usize| {
        let text = text
            .lines()
            .nth(number.saturating_sub(1))
            .unwrap_or_default();
        let indent = text
            .find(|c: char| !c.is_whitespace())
            .unwrap_or(text.len());
        text.get(..indent).and_then(|indent| indent.find('\t'))
    };
    for number in [line, line.saturating_sub(1)] {
        if number > 0
            && let Some(column) = tab(number)
        {
            return Fault {
                line: number,
                column: column.saturating_add(1),
                message: "a tab cannot indent YAML; use spaces".to_owned(),
            };
        }
    }
    Fault {
        line,
        column: mark.col().saturating_add(1),
        message: format!("not valid YAML: {}", fault.info()),
    }
}
