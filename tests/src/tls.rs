//! TLS in front of anything that speaks TCP, with a certificate of an authority
//! made for one test.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tempfile::TempDir;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

/// The name that its certificate is of.
pub const NAME: &str = "localhost";

/// It stops when dropped.
#[derive(Debug)]
pub struct Tls {
    addr: SocketAddr,
    dir: TempDir,
    server: JoinHandle<()>,
}

impl Drop for Tls {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Tls {
    /// In front of `target`.
    pub async fn before(target: SocketAddr) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let ca_key = KeyPair::generate().unwrap();
        let mut ca = CertificateParams::new(Vec::new()).unwrap();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca_cert = ca.self_signed(&ca_key).unwrap();
        std::fs::write(dir.path().join("ca.pem"), ca_cert.pem()).unwrap();
        let key = KeyPair::generate().unwrap();
        let server = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
        let server = server.signed_by(&key, &Issuer::new(ca, ca_key)).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![server.der().clone()], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let server = tokio::spawn(accept(listener, acceptor, target));
        Self { addr, dir, server }
    }

    /// Its port.
    pub const fn port(&self) -> u16 {
        self.addr.port()
    }

    /// What `SSL_CERT_FILE` has to name for its certificate to be trusted.
    pub fn ca_file(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, target: SocketAddr) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        let acceptor = acceptor.clone();
        tokio::spawn(async move {
            let mut stream = acceptor.accept(stream).await.ok()?;
            let mut behind = TcpStream::connect(target).await.ok()?;
            copy_bidirectional(&mut stream, &mut behind).await.ok()
        });
    }
}
