//! What the start says: where the node listens, what it found, and a line that
//! works as it stands.

use std::io::{IsTerminal as _, Write as _};
use std::net::SocketAddr;

use shared_proto::config::{Config, FoundConnection};

/// Says hello: as one structured line a fact for machines, and on a terminal
/// as text.
pub(crate) fn show(
    config: &Config,
    found: &[FoundConnection],
    addresses: &[(&'static str, SocketAddr)],
) {
    // The clients' address comes last: whoever waits for it has seen the other.
    for (setting, address) in addresses.iter().rev() {
        let listener = if *setting == "server.adminListen" {
            "admin"
        } else {
            "client"
        };
        tracing::info!(%address, listener, "listening");
    }
    for connection in found {
        tracing::info!(
            connection = connection.connection,
            variable = connection.variable,
            "connection found in the environment"
        );
    }
    let connections = config.connections.iter().filter(|c| c.enabled).count();
    tracing::info!(connections, combos = config.combos.len(), "configured");
    management(config, addresses);
    if let Some((_, address)) = addresses.first() {
        let example = example(*address, config);
        if std::io::stderr().is_terminal() {
            // As it stands, for copying; a log field would be quoted.
            writeln!(std::io::stderr().lock(), "\n  Try it:\n  {example}\n").ok();
        } else {
            tracing::info!(curl = example, "try it");
        }
    }
}

/// Where a listener is reached from its own machine: one on every address over loopback.
pub(crate) fn reachable(address: SocketAddr) -> String {
    match address {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => format!("127.0.0.1:{}", v4.port()),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => format!("[::1]:{}", v6.port()),
        SocketAddr::V4(_) | SocketAddr::V6(_) => address.to_string(),
    }
}

/// The line to try.
pub(crate) fn example(address: SocketAddr, config: &Config) -> String {
    let host = reachable(address);
    let key = if config.api_keys.is_empty() {
        ""
    } else {
        " -H 'authorization: Bearer YOUR_KEY'"
    };
    format!(
        "curl -sS http://{host}/v1/chat/completions{key} -H 'content-type: application/json' -d '{{\"model\":\"simulated/ok\",\"messages\":[{{\"role\":\"user\",\"content\":\"ping\"}}]}}'"
    )
}

fn management(config: &Config, addresses: &[(&'static str, SocketAddr)]) {
    let server = &config.server;
    let admin = server.admin_listen.unwrap_or(server.listen);
    if server.admin_token.is_some() {
        return;
    }
    if admin.ip().is_loopback() {
        tracing::info!(
            "management needs no token: the listener is loopback and server.adminToken is not set"
        );
    } else {
        let setting = addresses
            .last()
            .map_or("server.listen", |(setting, _)| *setting);
        tracing::warn!(
            setting,
            "management is off: set server.adminToken, or use a key with the scope `manage`"
        );
    }
}
