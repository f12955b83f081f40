//! The HTTP surface from outside: every route, guard and odd input, through the router and over real sockets.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::needless_pass_by_value,
    reason = "helpers of tests stand outside of test functions, and json! reads best by value"
)]

mod http {
    pub(crate) mod harness;

    mod chat;
    mod completions;
    mod guards;
    mod keep_alive;
    mod observability;
    mod odd_inputs;
    mod residency;
    mod sockets;
    mod speech;
    mod streams;
}
