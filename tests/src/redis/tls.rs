//! A certificate authority and a certificate of this machine that both servers
//! and clients present, made for one test.

use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

const CA: &str = "ca.pem";
const CERT: &str = "server.pem";
const KEY: &str = "server-key.pem";

/// Its files are there as long as it is.
#[derive(Debug)]
pub(super) struct Authority(TempDir);

impl Authority {
    pub(super) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let ca_key = KeyPair::generate().unwrap();
        let mut ca = CertificateParams::new(Vec::new()).unwrap();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // Of the same name, the server's would look as if it had signed itself.
        ca.distinguished_name
            .push(DnType::CommonName, "an authority of tests");
        let ca_cert = ca.self_signed(&ca_key).unwrap();
        let issuer = Issuer::new(ca, ca_key);
        let key = KeyPair::generate().unwrap();
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let server = CertificateParams::new(names).unwrap();
        let server = server.signed_by(&key, &issuer).unwrap();
        let all = Self(dir);
        std::fs::write(all.path(CA), ca_cert.pem()).unwrap();
        std::fs::write(all.path(CERT), server.pem()).unwrap();
        std::fs::write(all.path(KEY), key.serialize_pem()).unwrap();
        all
    }

    /// The lines of a server's configuration that name the files.
    pub(super) fn lines(&self) -> String {
        let [ca, cert, key] = self.files();
        format!(
            "tls-ca-cert-file {ca}\ntls-cert-file {cert}\ntls-key-file {key}\n\
             tls-auth-clients no\n"
        )
    }

    /// The part of a URL that names them, with the `?`.
    pub(super) fn query(&self) -> String {
        let [ca, cert, key] = self.files();
        format!("?ca={ca}&cert={cert}&key={key}")
    }

    /// The arguments of `redis-cli` that name them.
    pub(super) fn cli_args(&self) -> Vec<String> {
        let [ca, cert, key] = self.files();
        ["--tls", "--cacert", &ca, "--cert", &cert, "--key", &key]
            .map(str::to_owned)
            .into()
    }

    pub(super) fn ca_file(&self) -> PathBuf {
        self.path(CA)
    }

    fn files(&self) -> [String; 3] {
        [CA, CERT, KEY].map(|name| self.path(name).display().to_string())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}
