//! What a server is started with.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::sampling::SamplingOverrides;

/// The port Linnet listens on unless told otherwise.
pub const DEFAULT_PORT: u16 = 5466;

/// The largest request body taken by default: long contexts fit many times over.
pub const DEFAULT_BODY_LIMIT: usize = 32 * 1024 * 1024;

/// The largest upload of audio taken by default: three hours of MP3, or an hour and a half of uncompressed mono at 16 kHz.
pub const DEFAULT_AUDIO_LIMIT: usize = 256 * 1024 * 1024;

/// How a server behaves; every field has a safe default.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// `Host` names accepted besides the loopback ones; a port in them is passed over. Compared without case.
    pub allowed_hosts: Vec<String>,
    /// Accept any `Host` that is a bare IP address. A page that rebinds its DNS name can only send a name, so this is
    /// safe; it is off because a loopback server needs none of it, and meant for servers bound to a network address.
    pub allow_ip_hosts: bool,
    /// `Origin` values accepted besides those of loopback pages, for example `https://chat.example`; a
    /// slash at the end is passed over.
    pub allowed_origins: Vec<String>,
    /// When set, every route but `GET /health` asks for `Authorization: Bearer KEY`.
    pub api_key: Option<String>,
    /// The largest request body, in bytes.
    pub body_limit: usize,
    /// The largest request body with audio, in bytes.
    pub audio_limit: usize,
    /// The longest silence on a stream before a comment is sent to keep the connection open.
    pub keep_alive: Duration,
    /// How long running answers may go on after a shutdown was asked for; then they end with an error event.
    pub shutdown_grace: Duration,
    /// Sampling values that stand above a model's own and below a request's.
    pub sampling: SamplingOverrides,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            allowed_hosts: Vec::new(),
            allow_ip_hosts: false,
            allowed_origins: Vec::new(),
            api_key: None,
            body_limit: DEFAULT_BODY_LIMIT,
            audio_limit: DEFAULT_AUDIO_LIMIT,
            keep_alive: Duration::from_secs(10),
            shutdown_grace: Duration::from_secs(3),
            sampling: SamplingOverrides::default(),
        }
    }
}

impl ServerOptions {
    /// The address served by default: loopback only.
    #[must_use]
    pub fn default_address() -> SocketAddr {
        SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), DEFAULT_PORT)
    }
}
