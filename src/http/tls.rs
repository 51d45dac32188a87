//! What every TLS connection uses: the system's authorities, those of the operator's file, HTTP/2 before HTTP/1.1. There is
//! no way to skip the check of a certificate.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::sync::OnceCell;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use url::Host;

use super::Error;
use super::sockets::Socket;
use crate::policy::Destination;

/// The protocol names of the handshake, the wanted one first.
const H2: &[u8] = b"h2";
const H1: &[u8] = b"http/1.1";

#[derive(Debug)]
pub(super) struct Tls {
    extra: Vec<CertificateDer<'static>>,
    config: OnceCell<Arc<ClientConfig>>,
}

impl Tls {
    /// Reads the operator's authorities; the system's are read at the first use.
    pub(super) fn new(ca_file: Option<&Path>) -> anyhow::Result<Self> {
        let extra = ca_file.map(authorities).transpose()?.unwrap_or_default();
        Ok(Self {
            extra,
            config: OnceCell::new(),
        })
    }

    /// Makes the connection secure. The flag says whether HTTP/2 was agreed on.
    pub(super) async fn secure(
        &self,
        stream: Socket,
        to: &Destination,
    ) -> Result<(TlsStream<Socket>, bool), Error> {
        let config = self.config().await?;
        let stream = TlsConnector::from(config)
            .connect(name(to)?, stream)
            .await
            .map_err(|error| refused(&error, to))?;
        let h2 = stream.get_ref().1.alpn_protocol() == Some(H2);
        Ok((stream, h2))
    }

    async fn config(&self) -> Result<Arc<ClientConfig>, Error> {
        let config = self.config.get_or_try_init(|| async {
            let extra = self.extra.clone();
            // The system's store can have hundreds of files: 10 to 50 ms, not to be spent on the thread of all calls.
            let built = tokio::task::spawn_blocking(move || build(extra)).await;
            built
                .map_err(|_| Error::ended())?
                .map(Arc::new)
                .map_err(|error| Error::Tls(format!("prepare TLS: {error}")))
        });
        config.await.cloned()
    }
}

fn build(extra: Vec<CertificateDer<'static>>) -> Result<ClientConfig, rustls::Error> {
    let system = rustls_native_certs::load_native_certs();
    if let Some(error) = system.errors.first() {
        tracing::warn!(
            target: super::LOG,
            faults = system.errors.len(),
            "some of the system's certificate authorities were not read: {error}"
        );
    }
    let mut roots = RootCertStore::empty();
    // System stores hold certificates that no strict parser takes; they are as good as absent.
    roots.add_parsable_certificates(system.certs.into_iter().chain(extra));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![H2.to_vec(), H1.to_vec()];
    Ok(config)
}

fn authorities(file: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let shown = file.display();
    let read = CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .with_context(|| format!("read the certificate authorities in `{shown}`"))?;
    anyhow::ensure!(
        !read.is_empty(),
        "`{shown}` holds no certificate: it has to be a PEM file with `BEGIN CERTIFICATE` lines"
    );
    let mut trial = RootCertStore::empty();
    for certificate in &read {
        trial
            .add(certificate.clone())
            .with_context(|| format!("use the certificate authorities in `{shown}`"))?;
    }
    Ok(read)
}

fn name(to: &Destination) -> Result<ServerName<'static>, Error> {
    match &to.host {
        Host::Domain(name) => ServerName::try_from(name.trim_end_matches('.').to_owned())
            .map_err(|_| Error::Tls(format!("`{to}` has no name that a certificate can be for"))),
        Host::Ipv4(address) => Ok(std::net::IpAddr::from(*address).into()),
        Host::Ipv6(address) => Ok(std::net::IpAddr::from(*address).into()),
    }
}

fn refused(error: &std::io::Error, to: &Destination) -> Error {
    use rustls::{CertificateError, Error as Fault};
    let fault = error
        .get_ref()
        .and_then(|source| source.downcast_ref::<Fault>());
    let unknown = matches!(
        fault,
        Some(Fault::InvalidCertificate(CertificateError::UnknownIssuer))
    );
    Error::Tls(if unknown {
        format!(
            "the certificate of `{to}` is of an unknown authority: if it is your own, put it into the file that `ca_file` \
             under `[http]` names"
        )
    } else {
        format!("no secure connection to `{to}`: {error}")
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::Tls;

    #[test]
    fn a_file_of_authorities_that_is_missing_or_empty_is_named() {
        let missing = Tls::new(Some(Path::new("/nowhere/ca.pem"))).unwrap_err();
        assert!(format!("{missing:#}").contains("`/nowhere/ca.pem`"));
        let empty = Tls::new(Some(Path::new("/dev/null"))).unwrap_err();
        assert!(format!("{empty:#}").contains("`/dev/null` holds no certificate"));
    }
}
