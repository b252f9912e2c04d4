//! An event of the log as one line of JSON.
//!
//! Written straight into the layer's buffer: every request has a line, and the
//! general JSON formatter, which collects fields into a map, costs several
//! times as much.

use std::fmt::{self, Write};

use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// `{"timestamp", "level", ...the event's fields, "target"}`.
pub(super) struct JsonLine;

impl<S, N> FormatEvent<S, N> for JsonLine
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let metadata = event.metadata();
        writer.write_str("{\"timestamp\":\"")?;
        SystemTime.format_time(&mut writer)?;
        write!(writer, "\",\"level\":\"{}\"", metadata.level())?;
        let mut fields = Fields {
            out: writer,
            result: Ok(()),
        };
        event.record(&mut fields);
        fields.result?;
        fields.text("target", metadata.target())?;
        fields.out.write_str("}\n")
    }
}

/// Writes each field as `,"name":value`.
struct Fields<'a> {
    out: Writer<'a>,
    /// The first error, since a visit can't return one.
    result: fmt::Result,
}

impl Fields<'_> {
    fn name(&mut self, name: &str) -> fmt::Result {
        self.out.write_str(",\"")?;
        // A field's name comes from the source code; `r#type` means `type`.
        self.out
            .write_str(name.strip_prefix("r#").unwrap_or(name))?;
        self.out.write_str("\":")
    }

    fn text(&mut self, name: &str, value: impl fmt::Display) -> fmt::Result {
        self.name(name)?;
        self.out.write_char('"')?;
        write!(Escaped(&mut self.out), "{value}")?;
        self.out.write_char('"')
    }

    fn bare(&mut self, name: &str, value: impl fmt::Display) -> fmt::Result {
        self.name(name)?;
        write!(self.out, "{value}")
    }

    fn keep(&mut self, write: impl FnOnce(&mut Self) -> fmt::Result) {
        if self.result.is_ok() {
            self.result = write(self);
        }
    }
}

impl Visit for Fields<'_> {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.keep(|fields| {
            if value.is_finite() {
                fields.bare(field.name(), value)
            } else {
                fields.bare(field.name(), "null")
            }
        });
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.keep(|fields| fields.bare(field.name(), value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.keep(|fields| fields.bare(field.name(), value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.keep(|fields| fields.bare(field.name(), value));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.keep(|fields| fields.text(field.name(), value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.keep(|fields| fields.text(field.name(), format_args!("{value:?}")));
    }
}

/// Escapes what is written for the inside of a JSON string.
struct Escaped<'a, 'b>(&'a mut Writer<'b>);

impl Write for Escaped<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some(at) = rest
            .bytes()
            .position(|byte| byte < 0x20 || matches!(byte, b'"' | b'\\'))
        {
            // What is escaped is one byte long, so both cuts are at characters.
            let (plain, from) = rest.split_at(at);
            self.0.write_str(plain)?;
            let special = from.bytes().next().unwrap_or_default();
            match special {
                b'"' => self.0.write_str("\\\"")?,
                b'\\' => self.0.write_str("\\\\")?,
                b'\n' => self.0.write_str("\\n")?,
                b'\r' => self.0.write_str("\\r")?,
                b'\t' => self.0.write_str("\\t")?,
                other => write!(self.0, "\\u{other:04x}")?,
            }
            rest = from.get(1..).unwrap_or_default();
        }
        self.0.write_str(rest)
    }
}
