//! Values, as both kinds of databases have them.

use super::{SqlError, SqlResult};

/// A value of a row, or of a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Null,
    Number(i64),
    Text(String),
    Bytes(Vec<u8>),
}

/// A type that can be a parameter.
pub(crate) trait ToValue {
    fn to_value(&self) -> Value;
}

/// A type that a column can be read as.
pub(crate) trait FromValue: Sized {
    /// Name of the type for messages.
    const WHAT: &'static str;

    /// Returns `None` if the value has another type.
    fn from_value(value: &Value) -> Option<Self>;
}

/// Parameters of an order.
macro_rules! params {
    ($($value:expr),* $(,)?) => { &[$($crate::sql::ToValue::to_value(&$value)),*] };
}
pub(crate) use params;

/// A row of an answer.
#[derive(Debug)]
pub(crate) struct Row(Vec<Value>);

impl Row {
    pub(super) fn new(values: Vec<Value>) -> Row {
        Row(values)
    }

    /// Returns the value of a column, which are counted from 0.
    pub(crate) fn get<T: FromValue>(&self, column: usize) -> SqlResult<T> {
        let value = self.0.get(column).unwrap_or(&Value::Null);
        let cause = || format!("is no {}", T::WHAT);
        T::from_value(value).ok_or_else(|| SqlError::Meaning { column, cause: cause() })
    }
}

/// Implements both directions for a type: the value of a `$name`, and what a value of that kind is read as.
macro_rules! values {
    ($($ty:ty as $what:literal { $name:ident => $to:expr, $from:pat => $read:expr })*) => {$(
        impl ToValue for $ty {
            fn to_value(&self) -> Value {
                let $name = self;
                $to
            }
        }

        impl FromValue for $ty {
            const WHAT: &'static str = $what;

            fn from_value(value: &Value) -> Option<$ty> {
                match value {
                    $from => $read,
                    _ => None,
                }
            }
        }
    )*};
}

values! {
    i64 as "number" { it => Value::Number(*it), Value::Number(number) => Some(*number) }
    u32 as "number of 32 bits" { it => Value::Number((*it).into()), Value::Number(number) => (*number).try_into().ok() }
    // As numbers, as SQLite has no truth values.
    bool as "truth value" { it => Value::Number((*it).into()), Value::Number(number) => Some(*number != 0) }
    String as "text" { it => Value::Text(it.clone()), Value::Text(text) => Some(text.clone()) }
    Vec<u8> as "bytes" { it => Value::Bytes(it.clone()), Value::Bytes(bytes) => Some(bytes.clone()) }
}

impl ToValue for str {
    fn to_value(&self) -> Value {
        Value::Text(self.to_owned())
    }
}

impl ToValue for [u8] {
    fn to_value(&self) -> Value {
        Value::Bytes(self.to_vec())
    }
}

impl<T: ToValue> ToValue for Option<T> {
    fn to_value(&self) -> Value {
        self.as_ref().map_or(Value::Null, ToValue::to_value)
    }
}

impl<T: ToValue + ?Sized> ToValue for &T {
    fn to_value(&self) -> Value {
        (**self).to_value()
    }
}

impl<T: FromValue> FromValue for Option<T> {
    const WHAT: &'static str = T::WHAT;

    fn from_value(value: &Value) -> Option<Option<T>> {
        match value {
            Value::Null => Some(None),
            value => T::from_value(value).map(Some),
        }
    }
}
