//! Connections to a server that nobody in between reads or changes, as `sslmode` of PostgreSQL's own library has them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::{PoolError, PoolResult};

/// Where that library looks for certificates of who signs those of servers.
const ROOTS: &str = ".postgresql/root.crt";

/// How far a connection is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Not at all.
    Disable,
    /// Encrypted, if the server does that.
    Prefer,
    /// Encrypted, whoever answers; where certificates of who signs are there, as `verify-ca`.
    Require,
    /// With a server whose certificate is signed by who is trusted.
    VerifyCa,
    /// And is for the host that was named.
    VerifyFull,
}

impl Mode {
    /// What is wrong with another word.
    pub(super) const UNKNOWN: &str =
        "or PGSSLMODE has an sslmode other than disable, prefer, require, verify-ca, verify-full";

    pub(super) fn of_word(word: &str) -> Option<Mode> {
        Some(match word {
            "disable" => Mode::Disable,
            "prefer" => Mode::Prefer,
            "require" => Mode::Require,
            "verify-ca" => Mode::VerifyCa,
            "verify-full" => Mode::VerifyFull,
            _ => return None,
        })
    }
}

/// What makes connections in that manner.
///
/// # Errors
/// That certificates which it needs are not there, or are none.
pub(super) fn connector(
    mode: Mode,
    roots: Option<PathBuf>,
    home: Option<&Path>,
) -> PoolResult<MakeRustlsConnect> {
    let usual = || home.map(|home| home.join(ROOTS)).filter(|file| file.exists());
    let roots = match mode {
        Mode::Disable | Mode::Prefer => None,
        Mode::Require => roots.or_else(usual),
        Mode::VerifyCa | Mode::VerifyFull => Some(roots.or_else(usual).ok_or_else(|| no_roots(home))?),
    };
    let roots = roots.map(|file| certificates(&file)).transpose()?;
    let provider = Arc::new(ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| failed(Path::new("TLS"), error.to_string()))?;
    Ok(MakeRustlsConnect::new(match (mode, roots) {
        (Mode::VerifyFull, Some(roots)) => builder.with_root_certificates(roots).with_no_client_auth(),
        (_, roots) => {
            let verifier = Arc::new(Chain { provider, roots });
            builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth()
        }
    }))
}

fn certificates(file: &Path) -> PoolResult<RootCertStore> {
    let unread = |error: rustls::pki_types::pem::Error| failed(file, error.to_string());
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(file).map_err(unread)? {
        roots.add(certificate.map_err(unread)?).map_err(|error| failed(file, error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(failed(file, "has no certificate".into()));
    }
    Ok(roots)
}

fn failed(file: &Path, cause: String) -> PoolError {
    let remedy = "name a file of certificates (PEM): sslrootcert=FILE in the URL, or PGSSLROOTCERT".into();
    PoolError::Path { path: file.to_owned(), cause, remedy }
}

fn no_roots(home: Option<&Path>) -> PoolError {
    let path = home.map_or_else(|| PathBuf::from(ROOTS), |home| home.join(ROOTS));
    let cause =
        "is not there, and sslmode asks whether somebody who is trusted has signed the server's certificate";
    failed(&path, cause.to_owned())
}

/// Looks at who signed a certificate and not for which host, or at nothing. That the server has its key is seen in any
/// case.
#[derive(Debug)]
struct Chain {
    provider: Arc<CryptoProvider>,
    roots: Option<RootCertStore>,
}

impl ServerCertVerifier for Chain {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if let Some(roots) = &self.roots {
            let certificate = ParsedCertificate::try_from(end_entity)?;
            let algorithms = self.provider.signature_verification_algorithms.all;
            verify_server_cert_signed_by_trust_anchor(&certificate, roots, intermediates, now, algorithms)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
