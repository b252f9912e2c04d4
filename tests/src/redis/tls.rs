//! A certificate authority and a server's certificate, made for one test.

use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

/// The file of the authority's certificate.
pub(super) const CA: &str = "ca.pem";

/// The lines of configuration that name the files.
pub(super) const LINES: &str = "tls-cert-file server.pem\ntls-key-file server-key.pem\n\
    tls-ca-cert-file ca.pem\ntls-auth-clients no\n";

/// Writes the files into `dir`.
pub(super) fn write(dir: &Path) {
    let ca_key = KeyPair::generate().unwrap();
    let mut ca = CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_cert = ca.self_signed(&ca_key).unwrap();
    let issuer = Issuer::new(ca, ca_key);
    let key = KeyPair::generate().unwrap();
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let server = CertificateParams::new(names).unwrap();
    let server = server.signed_by(&key, &issuer).unwrap();
    std::fs::write(dir.join(CA), ca_cert.pem()).unwrap();
    std::fs::write(dir.join("server.pem"), server.pem()).unwrap();
    std::fs::write(dir.join("server-key.pem"), key.serialize_pem()).unwrap();
}
