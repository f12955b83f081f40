//! The HTTP surface from outside: every route, guard and odd input, through the router and over real sockets.

mod http {
    pub(crate) mod harness;

    mod chat;
    mod completions;
    mod guards;
    mod keep_alive;
    mod odd_inputs;
    mod sockets;
    mod streams;
}
