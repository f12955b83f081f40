//! Arguments of a call as Python binds them: by position or by name.

use minijinja::value::{Kwargs, from_args};
use minijinja::{Error, ErrorKind, Value};

/// The arguments of one call.
pub(super) struct Arguments<'a> {
    callee: &'a str,
    positional: &'a [Value],
    named: Kwargs,
}

impl<'a> Arguments<'a> {
    /// Binds `values` for a function that takes at most `maximum` arguments.
    pub(super) fn bind(callee: &'a str, maximum: usize, values: &'a [Value]) -> Result<Self, Error> {
        let (positional, named): (&[Value], Kwargs) = from_args(values)?;
        if positional.len() > maximum {
            let detail = format!("{callee} takes at most {maximum} arguments, {} were given", positional.len());
            return Err(Error::new(ErrorKind::TooManyArguments, detail));
        }
        Ok(Self { callee, positional, named })
    }

    /// The argument at `index` or called `name`, where given.
    pub(super) fn get(&self, index: usize, name: &str) -> Result<Option<Value>, Error> {
        match self.positional.get(index) {
            Some(_) if self.named.has(name) => {
                let detail = format!("{} got more than one value for {name}", self.callee);
                Err(Error::new(ErrorKind::TooManyArguments, detail))
            }
            Some(value) => Ok(Some(value.clone())),
            None if self.named.has(name) => self.named.get::<Value>(name).map(Some),
            None => Ok(None),
        }
    }

    /// As [`Self::get`], with `none` the same as not given.
    pub(super) fn get_some(&self, index: usize, name: &str) -> Result<Option<Value>, Error> {
        Ok(self.get(index, name)?.filter(|value| !value.is_none()))
    }

    /// The text at `index`, which must be given.
    pub(super) fn text(&self, index: usize) -> Result<&'a str, Error> {
        match self.positional.get(index) {
            Some(value) => value.as_str().ok_or_else(|| self.wrong(index, "text", value)),
            None => Err(Error::new(ErrorKind::MissingArgument, format!("{} misses an argument", self.callee))),
        }
    }

    /// The text at `index`, where given and not `none`.
    pub(super) fn text_or_none(&self, index: usize) -> Result<Option<&'a str>, Error> {
        match self.positional.get(index) {
            Some(value) if !value.is_none() => self.text(index).map(Some),
            _ => Ok(None),
        }
    }

    /// The integer at `index` or called `name`, where given and not `none`.
    pub(super) fn integer(&self, index: usize, name: &str) -> Result<Option<i64>, Error> {
        self.get_some(index, name)?
            .map(|value| i64::try_from(value.clone()).map_err(|_| self.wrong(index, "an integer", &value)))
            .transpose()
    }

    /// Refuses names that no `get` asked for.
    pub(super) fn finish(&self) -> Result<(), Error> {
        self.named.assert_all_used()
    }

    fn wrong(&self, index: usize, wanted: &str, value: &Value) -> Error {
        let kind = value.kind();
        let detail = format!("argument {} of {} must be {wanted}, not {kind}", index + 1, self.callee);
        Error::new(ErrorKind::InvalidOperation, detail)
    }
}
