//! **Purpose.** Tells a service manager that waits for it how the server is (`Type=notify`).
//!
//! **References.** sd_notify(3); the environment variable `NOTIFY_SOCKET`.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

const VARIABLE: &str = "NOTIFY_SOCKET";

/// A service manager, if one waits.
#[derive(Debug)]
pub(super) struct Manager(Option<UnixDatagram>);

impl Manager {
    /// The one that the environment names. It is connected to now, while that is allowed.
    pub(super) fn of_environment() -> Self {
        let socket = std::env::var_os(VARIABLE).map(|name| connected(&name));
        Self(socket.and_then(Result::ok))
    }

    /// The mount can be used; the server is this process.
    pub(super) fn ready(&self) {
        self.tell(&format!("READY=1\nMAINPID={}", std::process::id()));
    }

    /// The server is ending.
    pub(super) fn stopping(&self) {
        self.tell("STOPPING=1");
    }

    fn tell(&self, state: &str) {
        if let Some(socket) = &self.0 {
            // A manager that does not listen any more is told nothing; that is no failure of ours.
            let _ = socket.send(state.as_bytes());
        }
    }
}

fn connected(name: &OsStr) -> io::Result<UnixDatagram> {
    // A name that begins with @ stands for one that is not in the file system.
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(rest) => SocketAddr::from_abstract_name(rest)?,
        None => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    Ok(socket)
}
