//! The error a client is told inside its stream.

use serde_json::{Value, json};

use super::dialect::{frame, typed_frame};

/// What to tell the client, in its own protocol's words; the caller chooses
/// them as for an HTTP error. Nothing here may come from the upstream unchecked.
#[derive(Clone, Copy, Debug)]
pub struct InBandError<'a> {
    /// The protocol's error type, such as `server_error` or `overloaded_error`.
    pub kind: &'a str,
    /// The router's own code, which the protocol's error carries beside its type.
    pub code: Option<&'a str>,
    /// What happened, for people.
    pub message: &'a str,
    /// The id under which the request can be looked up.
    pub request_id: Option<&'a str>,
}

impl InBandError<'_> {
    /// `data: {"error": ...}` of chat completions.
    pub(crate) fn chat(&self) -> Vec<u8> {
        let mut body = json!({"error": {
            "message": self.message, "type": self.kind, "param": null, "code": self.code,
        }});
        self.add_request_id(&mut body);
        frame(b"", body.to_string().as_bytes())
    }

    /// `event: error` of messages.
    pub(crate) fn messages(&self) -> Vec<u8> {
        let mut body = json!({
            "type": "error", "error": {"type": self.kind, "message": self.message},
        });
        if let Some(code) = self.code {
            body["error"]["code"] = Value::from(code);
        }
        self.add_request_id(&mut body);
        typed_frame(&body)
    }

    /// The `error` member of a failed response.
    pub(crate) fn responses(&self) -> Value {
        json!({"code": self.code.unwrap_or(self.kind), "message": self.message})
    }

    fn add_request_id(&self, body: &mut Value) {
        if let (Some(id), Some(map)) = (self.request_id, body.as_object_mut()) {
            map.insert("request_id".to_owned(), Value::from(id));
        }
    }
}
