//! A value of GGUF metadata.

/// A value, with all widths of one kind taken together.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Unsigned(u64),
    Signed(i64),
    Float32(f32),
    Float64(f64),
    Boolean(bool),
    Text(String),
    Array(Vec<Value>),
}

impl Value {
    pub(crate) fn as_text(&self) -> Option<&str> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn as_integer(&self) -> Option<u64> {
        match *self {
            Value::Unsigned(number) => Some(number),
            Value::Signed(number) => u64::try_from(number).ok(),
            _ => None,
        }
    }

    pub(crate) fn as_float(&self) -> Option<f32> {
        match *self {
            Value::Float32(number) => Some(number),
            Value::Float64(number) => Some(number as f32),
            Value::Unsigned(number) => Some(number as f32),
            Value::Signed(number) => Some(number as f32),
            _ => None,
        }
    }

    pub(crate) fn as_boolean(&self) -> Option<bool> {
        match *self {
            Value::Boolean(truth) => Some(truth),
            _ => None,
        }
    }

    pub(crate) fn as_array(&self) -> Option<&[Value]> {
        match self {
            Value::Array(values) => Some(values),
            _ => None,
        }
    }
}

/// A 32-bit number as JSON, in its shortest decimal form: 1e-5, not 9.999999747378752e-6.
pub(crate) fn json_float(number: f32) -> serde_json::Value {
    let shortest: f64 = number.to_string().parse().unwrap_or(f64::from(number));
    serde_json::json!(shortest)
}
