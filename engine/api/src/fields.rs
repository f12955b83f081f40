//! Reads the fields of a JSON request with errors that name the path, what was expected and what was found.
//!
//! Requests are read by hand rather than by derived deserialization: the wire has fields of several shapes (a text or a
//! list, a number or null), and for those a derived reader can only say that nothing matched.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::quote::shortened;

/// A JSON object of a request and where it stands.
#[derive(Debug, Clone)]
pub(crate) struct Fields<'a> {
    object: &'a Map<String, Value>,
    path: String,
}

/// A value of a request and where it stands.
#[derive(Debug, Clone)]
pub(crate) struct Field<'a> {
    /// The value.
    pub(crate) value: &'a Value,
    path: String,
}

impl<'a> Fields<'a> {
    /// The whole body.
    pub(crate) fn root(body: &'a Value) -> Result<Self, ApiError> {
        match body {
            Value::Object(object) => Ok(Self { object, path: String::new() }),
            other => Err(ApiError::InvalidField {
                field: "(body)".to_owned(),
                problem: format!("expected an object, got {}", describe(other)),
            }),
        }
    }

    fn path_of(&self, name: &str) -> String {
        let name = shortened(name);
        if self.path.is_empty() { name } else { format!("{}.{name}", self.path) }
    }

    /// The field, unless it is absent or null: OpenAI's wire treats both alike.
    pub(crate) fn get(&self, name: &str) -> Option<Field<'a>> {
        let value = self.object.get(name).filter(|value| !value.is_null())?;
        Some(Field { value, path: self.path_of(name) })
    }

    /// The field, which must be there and not null.
    pub(crate) fn require(&self, name: &str, expected: &str) -> Result<Field<'a>, ApiError> {
        self.get(name).ok_or_else(|| {
            let found = if self.object.contains_key(name) { "got null" } else { "but it is missing" };
            ApiError::InvalidField { field: self.path_of(name), problem: format!("expected {expected}, {found}") }
        })
    }

    /// All entries that are not null.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&'a String, Field<'a>)> + '_ {
        let present = self.object.iter().filter(|(_, value)| !value.is_null());
        present.map(|(name, value)| (name, Field { value, path: self.path_of(name) }))
    }

    pub(crate) fn optional_text(&self, name: &str) -> Result<Option<&'a str>, ApiError> {
        self.get(name).map(|field| field.text()).transpose()
    }

    pub(crate) fn optional_flag(&self, name: &str) -> Result<Option<bool>, ApiError> {
        self.get(name).map(|field| field.flag()).transpose()
    }

    pub(crate) fn optional_number(&self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f32>, ApiError> {
        self.get(name).map(|field| field.number(range)).transpose()
    }

    pub(crate) fn optional_integer(&self, name: &str, range: RangeInclusive<i64>) -> Result<Option<i64>, ApiError> {
        self.get(name).map(|field| field.integer(range)).transpose()
    }
}

impl<'a> Field<'a> {
    /// Where the value stands.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// The error for a value that is not what was expected.
    pub(crate) fn expected(&self, expected: &str) -> ApiError {
        ApiError::InvalidField {
            field: self.path.clone(),
            problem: format!("expected {expected}, got {}", describe(self.value)),
        }
    }

    /// The error for a value this server has no support for.
    pub(crate) fn unsupported(&self, problem: impl Into<String>) -> ApiError {
        ApiError::Unsupported { field: self.path.clone(), problem: problem.into() }
    }

    pub(crate) fn text(&self) -> Result<&'a str, ApiError> {
        self.value.as_str().ok_or_else(|| self.expected("a string"))
    }

    pub(crate) fn flag(&self) -> Result<bool, ApiError> {
        self.value.as_bool().ok_or_else(|| self.expected("true or false"))
    }

    pub(crate) fn number(&self, range: RangeInclusive<f64>) -> Result<f32, ApiError> {
        match self.value.as_f64() {
            Some(number) if range.contains(&number) => Ok(number as f32),
            _ => Err(self.expected(&format!("a number from {} to {}", range.start(), range.end()))),
        }
    }

    /// A seed: any whole number of 64 bits, with a sign or without.
    pub(crate) fn seed(&self) -> Result<u64, ApiError> {
        match self.value.as_u64() {
            Some(seed) => Ok(seed),
            None => Ok(self.integer(i64::MIN..=i64::MAX)?.cast_unsigned()),
        }
    }

    /// A whole number; `5.0` counts as one, as some clients write all numbers so.
    pub(crate) fn integer(&self, range: RangeInclusive<i64>) -> Result<i64, ApiError> {
        let whole = self.value.as_i64().or_else(|| {
            let number = self.value.as_f64()?;
            // Beyond 2^53 a float no longer says which whole number is meant.
            (number.fract() == 0.0 && number.abs() <= 9_007_199_254_740_992.0).then_some(number as i64)
        });
        match whole {
            Some(number) if range.contains(&number) => Ok(number),
            _ => Err(self.expected(&expected_integer(&range))),
        }
    }

    /// The item at this place of a list that has one there.
    pub(crate) fn item(&self, index: usize) -> Result<Field<'a>, ApiError> {
        let value = self.value.get(index).ok_or_else(|| self.expected("a longer list"))?;
        Ok(Field { value, path: format!("{}[{index}]", self.path) })
    }

    /// A list of whole numbers; as it may hold millions, no path is made but that of a wrong one.
    pub(crate) fn integers(&self, expected: &str, range: &RangeInclusive<i64>) -> Result<Vec<i64>, ApiError> {
        let items = self.value.as_array().ok_or_else(|| self.expected(expected))?;
        let read = |(index, value): (usize, &'a Value)| match value.as_i64().filter(|number| range.contains(number)) {
            Some(number) => Ok(number),
            None => Field { value, path: format!("{}[{index}]", self.path) }.integer(range.clone()),
        };
        items.iter().enumerate().map(read).collect()
    }

    pub(crate) fn list(&self, expected: &str) -> Result<Vec<Field<'a>>, ApiError> {
        let items = self.value.as_array().ok_or_else(|| self.expected(expected))?;
        let place = |(index, value)| Field { value, path: format!("{}[{index}]", self.path) };
        Ok(items.iter().enumerate().map(place).collect())
    }

    pub(crate) fn object(&self) -> Result<Fields<'a>, ApiError> {
        match self.value {
            Value::Object(object) => Ok(Fields { object, path: self.path.clone() }),
            _ => Err(self.expected("an object")),
        }
    }
}

fn expected_integer(range: &RangeInclusive<i64>) -> String {
    match (*range.start(), *range.end()) {
        (i64::MIN, i64::MAX) => "a whole number of 64 bits".to_owned(),
        (low, i64::MAX) => format!("a whole number of at least {low}"),
        (low, high) => format!("a whole number from {low} to {high}"),
    }
}

/// A value in words, short enough for an error text.
fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => shortened(&number.to_string()),
        Value::String(text) => format!("the string {:?}", shortened(text)),
        Value::Array(items) => format!("a list of {}", items.len()),
        Value::Object(_) => "an object".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn errors_name_path_expectation_and_finding() {
        let body = json!({"a": {"list": [1, "two"]}, "t": 3, "nothing": null});
        let root = Fields::root(&body).unwrap();
        let list = root.get("a").unwrap().object().unwrap().get("list").unwrap().list("a list").unwrap();
        assert_eq!(
            list[1].flag().unwrap_err().to_string(),
            "`a.list[1]`: expected true or false, got the string \"two\""
        );
        assert_eq!(
            root.optional_number("t", 0.0..=2.0).unwrap_err().to_string(),
            "`t`: expected a number from 0 to 2, got 3"
        );
        assert_eq!(
            root.require("model", "a string").unwrap_err().to_string(),
            "`model`: expected a string, but it is missing"
        );
        assert_eq!(root.require("nothing", "a list").unwrap_err().to_string(), "`nothing`: expected a list, got null");
        assert_eq!(Fields::root(&json!([1])).unwrap_err().to_string(), "`(body)`: expected an object, got a list of 1");
    }

    #[test]
    fn whole_numbers_may_be_written_with_a_point_but_not_with_a_fraction() {
        let body = json!({"a": 5.0, "b": 5.5, "c": 1e300, "d": u64::MAX, "e": -1});
        let root = Fields::root(&body).unwrap();
        assert_eq!(root.optional_integer("a", 0..=9).unwrap(), Some(5));
        for name in ["b", "c", "d", "e"] {
            assert!(root.optional_integer(name, 0..=i64::MAX).is_err(), "{name}");
        }
        assert_eq!(
            root.optional_integer("e", 1..=i64::MAX).unwrap_err().to_string(),
            "`e`: expected a whole number of at least 1, got -1"
        );
    }

    #[test]
    fn long_texts_are_not_repeated_whole() {
        let body = json!({"a": "é".repeat(1000)});
        let text = Fields::root(&body).unwrap().optional_flag("a").unwrap_err().to_string();
        assert!(text.chars().count() < 120 && text.ends_with("...\""), "{text}");
        let body = json!({"k".repeat(1000): 1});
        let root = Fields::root(&body).unwrap();
        let text = root.entries().next().unwrap().1.flag().unwrap_err().to_string();
        assert!(text.len() < 120 && text.contains("kkk...`"), "{text}");
    }
}
