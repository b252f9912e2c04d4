//! Types that read the few members a judge acts on, and never fail on a value
//! of the wrong type: an upstream's oddity must not look like a broken stream.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

/// The visitor methods for everything but strings, numbers and containers.
macro_rules! plain_values_are {
    ($out:expr) => {
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("any JSON value")
        }
        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok($out)
        }
        fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
            Ok($out)
        }
    };
}

macro_rules! numbers_are {
    ($out:expr) => {
        fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
            Ok($out)
        }
        fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
            Ok($out)
        }
        fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
            Ok($out)
        }
    };
}

macro_rules! strings_are {
    ($out:expr) => {
        fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
            Ok($out)
        }
    };
}

macro_rules! arrays_are {
    ($out:expr) => {
        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            let mut filled = false;
            while seq.next_element::<IgnoredAny>()?.is_some() {
                filled = true;
            }
            Ok($out(filled))
        }
    };
}

macro_rules! objects_are {
    ($out:expr) => {
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut filled = false;
            while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
                filled = true;
            }
            Ok($out(filled))
        }
    };
}

/// A string, borrowed where it has no escapes, or the fact that something else stood there.
#[derive(Clone, Debug, Default)]
pub(crate) enum Text<'a> {
    #[default]
    Absent,
    Str(Cow<'a, str>),
    /// Not a string; whether it holds anything.
    Other(bool),
}

impl Text<'_> {
    /// The string, if it is one and not empty.
    pub(crate) fn as_str(&self) -> Option<&str> {
        match self {
            Self::Str(text) if !text.is_empty() => Some(text),
            Self::Str(_) | Self::Absent | Self::Other(_) => None,
        }
    }

    /// Whether there is anything in it.
    pub(crate) fn filled(&self) -> bool {
        match self {
            Self::Absent => false,
            Self::Str(text) => !text.is_empty(),
            Self::Other(filled) => *filled,
        }
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Text<'de>;

    plain_values_are!(Text::Absent);
    numbers_are!(Text::Other(true));
    arrays_are!(Text::Other);
    objects_are!(Text::Other);

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Text::Str(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Text::Str(Cow::Owned(text.to_owned())))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor)
    }
}

/// Whether a member holds anything: a string with characters, an array or object with items.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Filled(pub(crate) bool);

struct FilledVisitor;

impl<'de> Visitor<'de> for FilledVisitor {
    type Value = Filled;

    plain_values_are!(Filled(false));
    numbers_are!(Filled(true));
    arrays_are!(Filled);
    objects_are!(Filled);

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Filled(!text.is_empty()))
    }
}

impl<'de> Deserialize<'de> for Filled {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FilledVisitor)
    }
}

/// A count or an index; also when it is written as a string or with a fraction of zero.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Int(pub(crate) Option<u64>);

struct IntVisitor;

impl<'de> Visitor<'de> for IntVisitor {
    type Value = Int;

    plain_values_are!(Int(None));
    arrays_are!(|_| Int(None));
    objects_are!(|_| Int(None));

    fn visit_u64<E>(self, value: u64) -> Result<Self::Value, E> {
        Ok(Int(Some(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Self::Value, E> {
        Ok(Int(u64::try_from(value).ok()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Self::Value, E> {
        Ok(Int(format!("{value}").parse().ok()))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Int(text.trim().parse().ok()))
    }
}

impl<'de> Deserialize<'de> for Int {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(IntVisitor)
    }
}

/// An object, or nothing in place of anything else.
#[derive(Clone, Debug)]
pub(crate) struct Maybe<T>(pub(crate) Option<T>);

impl<T> Default for Maybe<T> {
    fn default() -> Self {
        Self(None)
    }
}

struct MaybeVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for MaybeVisitor<T> {
    type Value = Maybe<T>;

    plain_values_are!(Maybe(None));
    numbers_are!(Maybe(None));
    strings_are!(Maybe(None));
    arrays_are!(|_| Maybe(None));

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(|value| Maybe(Some(value)))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Maybe<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(MaybeVisitor(PhantomData))
    }
}

/// The objects of an array, each with its position.
#[derive(Clone, Debug)]
pub(crate) struct Many<T> {
    present: bool,
    items: Vec<(usize, T)>,
}

impl<T> Default for Many<T> {
    fn default() -> Self {
        Self {
            present: false,
            items: Vec::new(),
        }
    }
}

impl<T> Many<T> {
    /// Something stood there, but no array of objects.
    const fn nothing() -> Self {
        Self {
            present: true,
            items: Vec::new(),
        }
    }

    /// Whether the member was there at all, even as `null`.
    pub(crate) const fn present(&self) -> bool {
        self.present
    }

    /// The objects with their positions in the array.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        self.items.iter().map(|(position, item)| (*position, item))
    }

    pub(crate) const fn len(&self) -> usize {
        self.items.len()
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}

struct ManyVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ManyVisitor<T> {
    type Value = Many<T>;

    plain_values_are!(Many::nothing());
    numbers_are!(Many::nothing());
    strings_are!(Many::nothing());
    objects_are!(|_| Many::nothing());

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut many = Many::nothing();
        let mut position = 0_usize;
        while let Some(Maybe(item)) = seq.next_element::<Maybe<T>>()? {
            if let Some(item) = item {
                if many.items.is_empty() {
                    many.items.reserve_exact(1); // most arrays of a stream have one item
                }
                many.items.push((position, item));
            }
            position = position.saturating_add(1);
        }
        Ok(many)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Many<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ManyVisitor(PhantomData))
    }
}

/// The bytes are not an object that the typed reader takes as it stands.
#[derive(Debug)]
pub(crate) struct Unreadable;

/// Reads one object. Anything else, even valid JSON, is for [`normalise`].
pub(crate) fn object<'a, T: Deserialize<'a>>(data: &'a [u8]) -> Result<T, Unreadable> {
    if data.first() != Some(&b'{') {
        return Err(Unreadable);
    }
    // One check of the whole is cheaper than one of each string.
    let text = std::str::from_utf8(data).map_err(|_| Unreadable)?;
    serde_json::from_str(text).map_err(|_| Unreadable)
}

/// The slow way for what [`object`] refused: broken characters are replaced, of
/// a repeated member the last one counts, of an array the first item. `None` if
/// it is no JSON at all; an empty object in place of a plain value.
pub(crate) fn normalise(data: &[u8]) -> Option<Vec<u8>> {
    let value: Value = serde_json::from_str(&String::from_utf8_lossy(data)).ok()?;
    let object = match value {
        Value::Object(map) => Value::Object(map),
        Value::Array(items) => items
            .into_iter()
            .next()
            .filter(Value::is_object)
            .unwrap_or_else(|| Value::Object(serde_json::Map::new())),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            Value::Object(serde_json::Map::new())
        }
    };
    Some(object.to_string().into_bytes())
}
