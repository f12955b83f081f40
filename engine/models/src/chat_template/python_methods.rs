//! Methods of Python's types on template values. What is not here is left to minijinja's own set.
//!
//! Methods that change a list or a dict (`append`, `pop`, `update`) do not exist: the sandbox of transformers refuses
//! them too.

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

use super::arguments::Arguments;
use super::python_strings;

/// Calls `value.method(values)` as Python would.
pub(super) fn call(state: &mut State, value: &Value, method: &str, values: &[Value]) -> Result<Value, Error> {
    let own = match (value.kind(), value.as_str()) {
        (_, Some(text)) => python_strings::call(state, text, method, values)?,
        (ValueKind::Seq, _) => list_method(value, method, values)?,
        (ValueKind::Map, _) if method == "copy" => Some(value.clone()),
        _ => None,
    };
    match own {
        Some(result) => Ok(result),
        None => pycompat::unknown_method_callback(state, value, method, values),
    }
}

fn list_method(value: &Value, method: &str, values: &[Value]) -> Result<Option<Value>, Error> {
    match method {
        "copy" if value.downcast_object_ref::<Tuple>().is_none() => Ok(Some(value.clone())),
        "index" => {
            let arguments = Arguments::bind("index", 1, values)?;
            let wanted = arguments.get(0, "value")?;
            let position = value.try_iter()?.position(|item| Some(item) == wanted);
            let missing = || Error::new(ErrorKind::InvalidOperation, "the value is not in the list");
            position.map(|position| Some(Value::from(position))).ok_or_else(missing)
        }
        _ => Ok(None),
    }
}
