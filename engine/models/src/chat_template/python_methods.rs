//! Methods of Python's types on template values.

use minijinja::{Error, State, Value};
use minijinja_contrib::pycompat;

/// Calls `value.method(arguments)` as Python would.
pub(super) fn call(state: &mut State, value: &Value, method: &str, arguments: &[Value]) -> Result<Value, Error> {
    pycompat::unknown_method_callback(state, value, method, arguments)
}
