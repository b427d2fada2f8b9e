//! The certificate that a server makes for itself, and what TLS needs of one.

use std::io;
use std::sync::Arc;

use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use ring::digest::{SHA256, digest};
use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Returns a certificate for these names and addresses, and its private key, each as PEM.
///
/// # Errors
/// No random numbers, or a malformed name.
pub fn make(names: &[String]) -> io::Result<(String, String)> {
    let mut params = CertificateParams::new(names).map_err(io::Error::other)?;
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, "bivouac");
    params.distinguished_name = name;
    let key = KeyPair::generate().map_err(io::Error::other)?;
    let certificate = params.self_signed(&key).map_err(io::Error::other)?;
    Ok((certificate.pem(), key.serialize_pem()))
}

fn certificates(pem: &str) -> io::Result<Vec<CertificateDer<'static>>> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    let all = all.map_err(io::Error::other)?;
    if all.is_empty() { Err(io::Error::other("there is no certificate in it")) } else { Ok(all) }
}

/// Returns the SHA-256 of the first certificate in a PEM, as browsers show it.
///
/// # Errors
/// That there is none in it.
pub fn fingerprint(pem: &str) -> io::Result<String> {
    let certificates = certificates(pem)?;
    let first = certificates.first().map(|first| digest(&SHA256, first));
    let bytes: Vec<String> =
        first.iter().flat_map(|digest| digest.as_ref()).map(|byte| format!("{byte:02X}")).collect();
    Ok(bytes.join(":"))
}

/// Checks that a PEM file has a usable certificate and key.
pub fn check(pem: &str) -> io::Result<()> {
    config(pem).map(drop)
}

/// Returns the TLS configuration for the certificate and key of a PEM file.
///
/// # Errors
/// That they are damaged, or do not fit together.
pub fn config(pem: &str) -> io::Result<Arc<ServerConfig>> {
    let key = PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(io::Error::other)?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_no_client_auth()
        .with_single_cert(certificates(pem)?, key)
        .map_err(io::Error::other)?;
    // HTTP/2 is not served, which browsers prefer where nothing is said.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_made_can_be_used() {
        let (certificate, key) = make(&["localhost".into(), "127.0.0.1".into()]).unwrap();
        assert!(config(&certificate).is_err() && !certificate.contains("PRIVATE"), "without its key");
        let pem = certificate + &key;
        assert_eq!(config(&pem).unwrap().alpn_protocols, [b"http/1.1"]);
        let fingerprint = fingerprint(&pem).unwrap();
        assert_eq!(fingerprint.split(':').count(), 32);
        assert_ne!(fingerprint, super::fingerprint(&make(&["localhost".into()]).unwrap().0).unwrap());
        assert!(config("").is_err() && super::fingerprint("x").is_err());
    }
}
