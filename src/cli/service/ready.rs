//! What windowsill tells systemd once it listens (`Type=notify`). So a unit has started when it can be used, and one that
//! cannot has failed, which `windowsill service install` then says.

/// Says that windowsill listens, to the service manager that asked for it. Elsewhere, it does nothing.
#[cfg(target_os = "linux")]
pub(crate) fn tell() {
    let environment = windowsill::config::Environment::of_process();
    if let Some(socket) = environment.get("NOTIFY_SOCKET")
        && let Err(why) = send(socket)
    {
        tracing::warn!("systemd was not told that windowsill listens: {why}");
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn tell() {}

/// To a path, or to a name without one, which begins with `@`: the protocol of `sd_notify(3)`.
#[cfg(target_os = "linux")]
fn send(socket: &str) -> std::io::Result<usize> {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    let address = match socket.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(b"READY=1", &address)
}
