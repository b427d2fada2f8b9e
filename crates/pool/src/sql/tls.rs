//! TLS connections with the semantics of libpq's `sslmode`.

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

/// Default path of trusted certificates in libpq.
const ROOTS: &str = ".postgresql/root.crt";

/// `sslmode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TlsMode {
    /// Unencrypted.
    Disable,
    /// Encrypted, if the server does that.
    Prefer,
    /// Encrypted without authentication; as `verify-ca` if trusted certificates are configured.
    Require,
    /// Encrypted, with a certificate of a trusted authority.
    VerifyCa,
    /// And is for the host that was named.
    VerifyFull,
}

impl TlsMode {
    /// Message for an unknown mode.
    pub(super) const UNKNOWN: &str =
        "or PGSSLMODE has an sslmode other than disable, prefer, require, verify-ca, verify-full";

    pub(super) fn of_word(word: &str) -> Option<TlsMode> {
        Some(match word {
            "disable" => TlsMode::Disable,
            "prefer" => TlsMode::Prefer,
            "require" => TlsMode::Require,
            "verify-ca" => TlsMode::VerifyCa,
            "verify-full" => TlsMode::VerifyFull,
            _ => return None,
        })
    }
}

/// Returns the TLS connector of a mode.
///
/// # Errors
/// That certificates which it needs are not there, or are none.
pub(super) fn connector(
    mode: TlsMode,
    roots: Option<PathBuf>,
    home: Option<&Path>,
) -> PoolResult<MakeRustlsConnect> {
    let usual = || home.map(|home| home.join(ROOTS)).filter(|file| file.exists());
    let roots = match mode {
        // `prefer` goes on without encryption if need be: refusing a certificate would protect nobody.
        TlsMode::Disable | TlsMode::Prefer => None,
        TlsMode::Require => roots.or_else(usual),
        TlsMode::VerifyCa | TlsMode::VerifyFull => Some(roots.or_else(usual).ok_or_else(|| no_roots(home))?),
    };
    let roots = roots.map(|file| certificates(&file)).transpose()?;
    let provider = Arc::new(ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| failed(Path::new("TLS"), error.to_string()))?;
    Ok(MakeRustlsConnect::new(match (mode, roots) {
        (TlsMode::VerifyFull, Some(roots)) => builder.with_root_certificates(roots).with_no_client_auth(),
        (_, roots) => {
            // The library's own one would compare names, too, which these modes do not ask for.
            let verifier = Arc::new(ChainVerifier { provider, roots });
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

/// Verifier of the certificate chain without the host name, or of nothing. The server's possession of its key is
/// verified in any case.
#[derive(Debug)]
struct ChainVerifier {
    provider: Arc<CryptoProvider>,
    roots: Option<RootCertStore>,
}

impl ServerCertVerifier for ChainVerifier {
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
