//! Background responses are run while the client waits: nobody here could be
//! asked for them later. Their answers say so.

use bytes::Bytes;

use super::facts::{Edit, edited, members};

/// The word that marks such an answer.
pub(crate) const WARNING: &str = "background_degraded";
/// The member of the answer's metadata that holds it.
const MEMBER: &str = "\"omniroute_warning\":\"background_degraded\"";

/// The whole answer with a note in its metadata; as it is where it has no place
/// for one.
pub(crate) fn noted(body: &Bytes) -> Bytes {
    let note = || {
        let [metadata] = members(body, ["metadata"])?;
        let Some(metadata) = metadata else {
            let begin = body.iter().position(|b| *b == b'{')?.checked_add(1)?;
            let rest = body.get(begin..)?.trim_ascii_start();
            let comma = if rest.starts_with(b"}") { "" } else { "," };
            return Some((begin..begin, format!("\"metadata\":{{{MEMBER}}}{comma}")));
        };
        match body.get(metadata.clone())? {
            b"null" => Some((metadata, format!("{{{MEMBER}}}"))),
            [b'{', rest @ ..] => {
                let begin = metadata.start.checked_add(1)?;
                let empty = rest.trim_ascii_start().starts_with(b"}");
                let comma = if empty { "" } else { "," };
                Some((begin..begin, format!("{MEMBER}{comma}")))
            }
            _ => None,
        }
    };
    let edit: Option<Edit> = note();
    edit.map_or_else(|| body.clone(), |edit| edited(body, &mut [edit]))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::{Value, json};

    use super::noted;

    #[test]
    fn the_note_is_added_wherever_it_has_a_place() {
        let note = json!("background_degraded");
        for (before, after) in [
            (json!({}), json!({"metadata": {"omniroute_warning": note}})),
            (
                json!({"id": "r"}),
                json!({"id": "r", "metadata": {"omniroute_warning": note}}),
            ),
            (
                json!({"metadata": null}),
                json!({"metadata": {"omniroute_warning": note}}),
            ),
            (
                json!({"metadata": {}}),
                json!({"metadata": {"omniroute_warning": note}}),
            ),
            (
                json!({"metadata": {"a": "b"}, "x": 1}),
                json!({"metadata": {"a": "b", "omniroute_warning": note}, "x": 1}),
            ),
            (json!({"metadata": 7}), json!({"metadata": 7})),
            (json!([1]), json!([1])),
        ] {
            for text in [
                before.to_string(),
                serde_json::to_string_pretty(&before).unwrap(),
            ] {
                let noted: Value = serde_json::from_slice(&noted(&Bytes::from(text))).unwrap();
                assert_eq!(noted, after);
            }
        }
        assert_eq!(noted(&Bytes::from_static(b"{oops")), "{oops");
    }
}
