//! Filters, tests and functions of Jinja that minijinja lacks or defines otherwise.

use minijinja::Environment;

pub(super) fn add(_environment: &mut Environment<'static>) {}
