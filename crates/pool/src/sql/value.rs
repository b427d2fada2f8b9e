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

/// What can be a parameter.
pub(crate) trait ToValue {
    fn to_value(&self) -> Value;
}

/// What a column can be read as.
pub(crate) trait FromValue: Sized {
    /// What people call it.
    const WHAT: &'static str;

    /// Nothing, if the value is of another kind.
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

    /// The value of a column, which are counted from 0.
    pub(crate) fn get<T: FromValue>(&self, column: usize) -> SqlResult<T> {
        let value = self.0.get(column).unwrap_or(&Value::Null);
        let cause = || format!("is no {}", T::WHAT);
        T::from_value(value).ok_or_else(|| SqlError::Meaning { column, cause: cause() })
    }
}

impl ToValue for i64 {
    fn to_value(&self) -> Value {
        Value::Number(*self)
    }
}

impl ToValue for u32 {
    fn to_value(&self) -> Value {
        Value::Number(i64::from(*self))
    }
}

impl ToValue for bool {
    fn to_value(&self) -> Value {
        Value::Number(i64::from(*self))
    }
}

impl ToValue for str {
    fn to_value(&self) -> Value {
        Value::Text(self.to_owned())
    }
}

impl ToValue for String {
    fn to_value(&self) -> Value {
        Value::Text(self.clone())
    }
}

impl ToValue for [u8] {
    fn to_value(&self) -> Value {
        Value::Bytes(self.to_vec())
    }
}

impl ToValue for Vec<u8> {
    fn to_value(&self) -> Value {
        Value::Bytes(self.clone())
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

impl FromValue for i64 {
    const WHAT: &'static str = "number";

    fn from_value(value: &Value) -> Option<i64> {
        match value {
            Value::Number(number) => Some(*number),
            _ => None,
        }
    }
}

impl FromValue for u32 {
    const WHAT: &'static str = "number of 32 bits";

    fn from_value(value: &Value) -> Option<u32> {
        u32::try_from(i64::from_value(value)?).ok()
    }
}

impl FromValue for bool {
    const WHAT: &'static str = "truth value";

    fn from_value(value: &Value) -> Option<bool> {
        i64::from_value(value).map(|number| number != 0)
    }
}

impl FromValue for String {
    const WHAT: &'static str = "text";

    fn from_value(value: &Value) -> Option<String> {
        match value {
            Value::Text(text) => Some(text.clone()),
            _ => None,
        }
    }
}

impl FromValue for Vec<u8> {
    const WHAT: &'static str = "bytes";

    fn from_value(value: &Value) -> Option<Vec<u8>> {
        match value {
            Value::Bytes(bytes) => Some(bytes.clone()),
            _ => None,
        }
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
