//! Opening connections: login, encryption, time limits.

use std::path::Path;
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::io::tcp::TcpSettings;
use ::redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, ConnectionAddr, IntoConnectionInfo as _,
    RedisConnectionInfo, RedisError, TlsCertificates,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use secrecy::ExposeSecret as _;

use super::OpenError;
use super::fault::Fault;
use crate::config::{Login, RedisHost, RedisUrl};

/// Replies that a connection waits for at most; more callers wait their turn.
const PIPELINE: usize = 1024;

/// Which of the servers of a URL is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Party {
    /// One that keeps the records.
    Server,
    /// One that says where the master is.
    Sentinel,
}

/// How to open a connection to any server of a URL.
pub(super) struct Dial {
    url: RedisUrl,
    tls: TlsCertificates,
    /// For the connection and its login together.
    connect: Duration,
}

impl Dial {
    /// Reads the files that the URL names.
    pub(super) fn new(url: &RedisUrl, connect: Duration) -> Result<Self, OpenError> {
        let ca = url.ca.as_deref().map(certificates).transpose()?;
        let client = match &url.client {
            Some((cert, key)) => Some(ClientTlsConfig {
                client_cert: certificates(cert)?,
                client_key: private_key(key)?,
            }),
            None => None,
        };
        Ok(Self {
            url: url.clone(),
            tls: TlsCertificates {
                client_tls: client,
                root_cert: ca,
            },
            connect,
        })
    }

    /// A connection whose calls fail after `patience`.
    pub(super) async fn open(
        &self,
        host: &RedisHost,
        party: Party,
        patience: Duration,
    ) -> Result<MultiplexedConnection, Fault> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect))
            .set_response_timeout(Some(patience))
            .set_pipeline_buffer_size(PIPELINE);
        let client = self.client(host, party);
        let opened = match client {
            Ok(client) => {
                let opening = client.get_multiplexed_async_connection_with_config(&config);
                opening.await
            }
            Err(error) => Err(error),
        };
        opened.map_err(|error| Fault::of(&error).at(host))
    }

    fn client(&self, host: &RedisHost, party: Party) -> Result<Client, RedisError> {
        let (login, db) = match party {
            Party::Server => (&self.url.login, self.url.db),
            Party::Sentinel => (&self.url.sentinel_login, 0),
        };
        let RedisHost { host, port } = host.clone();
        let addr = if self.url.tls {
            ConnectionAddr::TcpTls {
                host,
                port,
                insecure: false,
                tls_params: None,
            }
        } else {
            ConnectionAddr::Tcp(host, port)
        };
        let info = addr
            .into_connection_info()?
            .set_tcp_settings(TcpSettings::default().set_nodelay(true))
            .set_redis_settings(settings(login, db));
        if self.url.tls {
            Client::build_with_tls(info, self.tls.clone())
        } else {
            Client::open(info)
        }
    }
}

fn settings(login: &Login, db: u32) -> RedisConnectionInfo {
    let mut settings = RedisConnectionInfo::default().set_db(db.into());
    if let Some(user) = &login.user {
        settings = settings.set_username(user);
    }
    if let Some(password) = &login.password {
        settings = settings.set_password(password.expose_secret());
    }
    settings
}

/// A PEM file with at least one certificate.
fn certificates(path: &Path) -> Result<Vec<u8>, OpenError> {
    let text = read(path)?;
    let mut found = CertificateDer::pem_slice_iter(&text).peekable();
    let whole = found.peek().is_some() && found.all(|certificate| certificate.is_ok());
    if whole {
        Ok(text)
    } else {
        Err(OpenError::not_pem(path, "certificates"))
    }
}

/// A PEM file with a private key.
fn private_key(path: &Path) -> Result<Vec<u8>, OpenError> {
    let text = read(path)?;
    match PrivateKeyDer::from_pem_slice(&text) {
        Ok(_) => Ok(text),
        Err(_) => Err(OpenError::not_pem(path, "a private key")),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, OpenError> {
    std::fs::read(path).map_err(|why| OpenError::File {
        path: path.to_owned(),
        why: why.to_string(),
    })
}
