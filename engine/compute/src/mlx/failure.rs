//! What MLX says when an operation fails.
//!
//! MLX's C interface returns a status and hands the message to one handler for the whole process, on the thread that
//! failed. mlx-rs installs its own, whose messages only mlx-rs can read; ours keeps the message for this thread and
//! passes it on, so that both can be used side by side.
#![allow(unsafe_code)]

use std::{
    cell::RefCell,
    ffi::{CStr, c_char, c_void},
};

/// An operation that MLX refused or that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{operation}: {reason}")]
pub(crate) struct Failure {
    pub(crate) operation: &'static str,
    pub(crate) reason: String,
}

impl Failure {
    pub(crate) fn new(operation: &'static str, reason: String) -> Self {
        Self { operation, reason }
    }
}

thread_local! {
    /// The last message on this thread that no one has taken: the interface offers no other way to carry it.
    static MESSAGE: RefCell<Option<String>> = const { RefCell::new(None) };
}

unsafe extern "C" {
    /// mlx-rs's own handler.
    fn default_mlx_error_handler(message: *const c_char, data: *mut c_void);
}

unsafe extern "C" fn keep(message: *const c_char, data: *mut c_void) {
    if !message.is_null() {
        // SAFETY: MLX passes a C string that lives for the call.
        let text = unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned();
        // A thread that is ending has no place for it left, and nobody who would ask.
        let _unheard = MESSAGE.try_with(|kept| kept.borrow_mut().replace(text));
    }
    // SAFETY: the arguments are those that MLX passed.
    unsafe { default_mlx_error_handler(message, data) };
}

/// Makes sure that messages are kept. Without a handler of ours MLX would end the process.
pub(crate) fn install() {
    // mlx-rs installs its handler once, before its first fallible call; after that ours stays.
    #[allow(clippy::redundant_clone)] // the call that can fail, which is the point
    let _first_call = mlx_rs::Array::from_int(0).clone();
    // SAFETY: the handler is a function without state and lives for ever.
    unsafe { mlx_sys::mlx_set_error_handler(Some(keep), std::ptr::null_mut(), None) };
}

/// What the operation that just failed said.
pub(crate) fn take(operation: &'static str) -> Failure {
    let reason = MESSAGE.with(|kept| kept.borrow_mut().take());
    Failure::new(operation, reason.unwrap_or_else(|| "MLX gave no reason".into()))
}
