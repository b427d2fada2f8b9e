//! Address of a server: from a URL and the environment variables of libpq.

use std::path::{Path, PathBuf};

use percent_encoding::percent_decode_str;
use postgres::Config;
use postgres::config::{Host, SslMode};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::passwords::{self, PasswordQuery};
use super::tls::{self, TlsMode};
use crate::{PoolError, PoolResult};

/// Environment variables of libpq. The URL takes precedence.
#[derive(Clone, Debug, Default)]
pub struct ServerEnvironment {
    /// The user's home.
    pub home: Option<PathBuf>,
    /// File of passwords: PGPASSFILE.
    pub pass_file: Option<PathBuf>,
    /// PGSSLMODE.
    pub ssl_mode: Option<String>,
    /// PGSSLROOTCERT: trusted certificates.
    pub root_cert: Option<PathBuf>,
}

/// Address of a server.
pub(crate) struct Address {
    pub(super) config: Config,
    pub(super) tls: MakeRustlsConnect,
    /// A file of passwords that others may read, and which is therefore not read.
    pub(crate) open_to_others: Option<PathBuf>,
}

/// URL parameters that the client library does not support, or only in part.
#[derive(Default)]
struct UrlParameters {
    mode: Option<String>,
    root_cert: Option<PathBuf>,
    pass_file: Option<PathBuf>,
}

impl Address {
    /// # Errors
    /// What is wrong with the URL, or with the files that it needs.
    pub(crate) fn read(url: &str, around: &ServerEnvironment) -> PoolResult<Address> {
        let wrong = || PoolError::Url { what: "is no URL of a server" };
        let (url, own) = UrlParameters::taken_from(url).ok_or_else(wrong)?;
        let mut config: Config = url.parse().map_err(|_| wrong())?;
        let mode = own.mode.as_deref().or(around.ssl_mode.as_deref());
        let mode = mode.map_or(Ok(TlsMode::Prefer), |word| {
            TlsMode::of_word(word).ok_or(PoolError::Url { what: TlsMode::UNKNOWN })
        })?;
        // A socket of the host is not encrypted, whatever is asked for: nobody is in between.
        let is_local = config.get_hosts().iter().all(|host| matches!(host, Host::Unix(_)));
        // An address alone (`hostaddr`) has no name that a certificate could be for.
        let is_named = !config.get_hosts().is_empty();
        let mode = if is_local && (is_named || mode == TlsMode::Prefer) { TlsMode::Disable } else { mode };
        let roots = own.root_cert.or_else(|| around.root_cert.clone());
        let tls = tls::connector(mode, roots, around.home.as_deref())?;
        config.ssl_mode(match mode {
            TlsMode::Disable => SslMode::Disable,
            TlsMode::Prefer => SslMode::Prefer,
            TlsMode::Require | TlsMode::VerifyCa | TlsMode::VerifyFull => SslMode::Require,
        });
        let file = own.pass_file.or_else(|| around.pass_file.clone());
        let file = file.or_else(|| around.home.as_ref().map(|home| home.join(".pgpass")));
        // With a password in the URL no file is read, and an open one is no matter.
        let open_to_others = match file.filter(|_| config.get_password().is_none()) {
            Some(file) => add_password(&mut config, &file)?,
            None => None,
        };
        Ok(Address { config, tls, open_to_others })
    }

    /// Returns server and database, without credentials.
    pub(crate) fn place(&self) -> String {
        let hosts = self.config.get_hosts().iter().map(|host| match host {
            Host::Tcp(name) => name.clone(),
            Host::Unix(dir) => dir.display().to_string(),
        });
        let hosts: Vec<String> = hosts.collect();
        format!("database {} of {}", self.config.get_dbname().unwrap_or("of your name"), hosts.join(", "))
    }
}

impl UrlParameters {
    /// Takes them out of a URL; nothing where one of them is not UTF-8.
    fn taken_from(url: &str) -> Option<(String, UrlParameters)> {
        let mut own = UrlParameters::default();
        // A password may have a question mark in it.
        let from = url.find('@').unwrap_or(0);
        let Some(at) = url.get(from..)?.find('?') else { return Some((url.to_owned(), own)) };
        let (plain, parameters) = url.split_at_checked(from + at)?;
        let mut others = Vec::new();
        for parameter in parameters.trim_start_matches('?').split('&') {
            let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let value = || percent_decode_str(value).decode_utf8().ok().map(std::borrow::Cow::into_owned);
            match key {
                "sslmode" => own.mode = Some(value()?),
                "sslrootcert" => own.root_cert = Some(value()?.into()),
                "passfile" => own.pass_file = Some(value()?.into()),
                _ => others.push(parameter),
            }
        }
        let mark = if others.is_empty() { "" } else { "?" };
        Some((format!("{plain}{mark}{}", others.join("&")), own))
    }
}

/// Adds the password that a file has, if all of the hosts have the same one there. Answers the file if others may read
/// it.
fn add_password(config: &mut Config, file: &Path) -> PoolResult<Option<PathBuf>> {
    let user = match config.get_user() {
        Some(user) => user.to_owned(),
        // As the library does it, whose password it is to be.
        None => whoami::username().unwrap_or_default(),
    };
    let database = config.get_dbname().unwrap_or(&user).to_owned();
    let ports = config.get_ports();
    let mut asked = Vec::new();
    for (index, host) in config.get_hosts().iter().enumerate() {
        let port = ports.get(index).or(ports.first()).copied().unwrap_or(5432);
        let host = match host {
            Host::Tcp(name) => name.clone(),
            Host::Unix(dir) => dir.display().to_string(),
        };
        asked.push(PasswordQuery { host, port, database: database.clone(), user: user.clone() });
    }
    match passwords::of(file, &asked)? {
        passwords::PasswordResult::OpenToOthers => Ok(Some(file.to_owned())),
        passwords::PasswordResult::Same(password) => {
            config.password(password);
            Ok(None)
        }
        passwords::PasswordResult::Nothing => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_parameters_are_taken_out_of_a_url() {
        let url =
            "postgres://me:a?b@h/site?sslmode=verify-full&options=-c%20x&sslrootcert=%2Fa%20b&passfile=/p";
        let (rest, own) = UrlParameters::taken_from(url).unwrap();
        assert_eq!(rest, "postgres://me:a?b@h/site?options=-c%20x");
        assert_eq!(
            (own.mode.as_deref(), own.root_cert.as_deref()),
            (Some("verify-full"), Some(Path::new("/a b")))
        );
        assert_eq!(own.pass_file.as_deref(), Some(Path::new("/p")));
        for same in ["postgres://h/site", "postgres://me:a?b@h", "postgres://h/site?options=x"] {
            assert_eq!(UrlParameters::taken_from(same).unwrap().0, same);
        }
        assert_eq!(UrlParameters::taken_from("postgres://h/s?sslmode=require").unwrap().0, "postgres://h/s");
        assert!(UrlParameters::taken_from("postgres://h/s?sslmode=%ff").is_none());
    }
}
