//! Servers with a pinned certificate.

use std::io;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme};

use crate::digest::Digest;

/// Timeout of each step of the handshake.
const STEP_WAIT: Duration = Duration::from_secs(10);

/// Returns the certificate of a server, if its SHA-256 is the expected one and the server has the key.
///
/// # Errors
/// That it does not answer, or has another one.
pub fn certificate(host: &str, port: u16, fingerprint: &str) -> io::Result<Vec<u8>> {
    let wanted = parse(fingerprint).ok_or_else(|| io::Error::other("its fingerprint is no SHA-256"))?;
    let provider = Arc::new(ring::default_provider());
    let verifier = Arc::new(PinnedCertificate { wanted, provider: Arc::clone(&provider) });
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    let bare = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let name = ServerName::try_from(bare.clone()).map_err(io::Error::other)?;
    let mut connection = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
    let mut stream = connect(&bare, port)?;
    while connection.is_handshaking() {
        connection.complete_io(&mut stream)?;
    }
    let certificate = connection.peer_certificates().and_then(<[_]>::first);
    certificate.map(|der| der.to_vec()).ok_or_else(|| io::Error::other("it showed no certificate"))
}

/// Returns a SHA-256 as browsers show it, or without colons.
fn parse(fingerprint: &str) -> Option<Digest> {
    Digest::parse(&fingerprint.replace(':', ""))
}

fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut failure = io::Error::from(io::ErrorKind::NotFound);
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, STEP_WAIT) {
            Ok(stream) => {
                stream.set_read_timeout(Some(STEP_WAIT))?;
                stream.set_write_timeout(Some(STEP_WAIT))?;
                return Ok(stream);
            }
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// A verifier that accepts one certificate and no other.
#[derive(Debug)]
struct PinnedCertificate {
    wanted: Digest,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinnedCertificate {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if Digest::of(end_entity) == self.wanted {
            return Ok(ServerCertVerified::assertion());
        }
        Err(Error::General("it has another certificate than the one that was said".to_owned()))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
