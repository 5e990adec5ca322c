//! **Purpose.** Notifies a service manager of the state of the server (`Type=notify`).
//!
//! **References.** sd_notify(3); the environment variable `NOTIFY_SOCKET`.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

const VARIABLE: &str = "NOTIFY_SOCKET";

/// The service manager, if there is one.
#[derive(Debug)]
pub(super) struct Manager(Option<UnixDatagram>);

impl Manager {
    /// Connects to the manager that the environment names. The sandbox would forbid it later.
    pub(super) fn of_environment() -> Self {
        let socket = std::env::var_os(VARIABLE).map(|name| connect(&name));
        Self(socket.and_then(Result::ok))
    }

    /// The mount can be used; the server is this process.
    pub(super) fn ready(&self) {
        self.send(&format!("READY=1\nMAINPID={}", std::process::id()));
    }

    /// The server is ending.
    pub(super) fn stopping(&self) {
        self.send("STOPPING=1");
    }

    fn send(&self, state: &str) {
        if let Some(socket) = &self.0 {
            // An error means that the manager does not listen any more.
            let _ = socket.send(state.as_bytes());
        }
    }
}

fn connect(name: &OsStr) -> io::Result<UnixDatagram> {
    // A name that begins with @ is an abstract one.
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(rest) => SocketAddr::from_abstract_name(rest)?,
        None => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    Ok(socket)
}
