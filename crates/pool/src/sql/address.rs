//! How a server is reached: by a URL, and by what the environment says, in the words of PostgreSQL's own library.

use std::path::{Path, PathBuf};

use percent_encoding::percent_decode_str;
use postgres::Config;
use postgres::config::{Host, SslMode};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::passwords::{self, Asked};
use super::tls::{self, Mode};
use crate::{PoolError, PoolResult};

/// What the environment says of servers; a URL counts before it.
#[derive(Clone, Debug, Default)]
pub struct ServerEnvironment {
    /// The user's home.
    pub home: Option<PathBuf>,
    /// File of passwords: PGPASSFILE.
    pub pass_file: Option<PathBuf>,
    /// How a connection is protected: PGSSLMODE.
    pub ssl_mode: Option<String>,
    /// Certificates of who signs those of servers: PGSSLROOTCERT.
    pub root_cert: Option<PathBuf>,
}

/// How a server is reached.
pub(crate) struct Address {
    pub(super) config: Config,
    pub(super) tls: MakeRustlsConnect,
    /// A file of passwords that others may read, and which is therefore not read.
    pub(crate) open_to_others: Option<PathBuf>,
}

/// Parameters of a URL that the library does not know, or knows less of.
#[derive(Default)]
struct Own {
    mode: Option<String>,
    root_cert: Option<PathBuf>,
    pass_file: Option<PathBuf>,
}

impl Address {
    /// # Errors
    /// What is wrong with the URL, or with the files that it needs.
    pub(crate) fn read(url: &str, around: &ServerEnvironment) -> PoolResult<Address> {
        let wrong = || PoolError::Url { what: "is no URL of a server" };
        let (url, own) = Own::taken_from(url).ok_or_else(wrong)?;
        let mut config: Config = url.parse().map_err(|_| wrong())?;
        let mode = own.mode.as_deref().or(around.ssl_mode.as_deref());
        let mode = mode.map_or(Ok(Mode::Prefer), |word| {
            Mode::of_word(word).ok_or(PoolError::Url { what: Mode::UNKNOWN })
        })?;
        // A socket of the host is not encrypted, whatever is asked for: nobody is in between.
        let is_local = config.get_hosts().iter().all(|host| matches!(host, Host::Unix(_)));
        // An address alone (`hostaddr`) has no name that a certificate could be for.
        let is_named = !config.get_hosts().is_empty();
        let mode = if is_local && (is_named || mode == Mode::Prefer) { Mode::Disable } else { mode };
        let roots = own.root_cert.or_else(|| around.root_cert.clone());
        let tls = tls::connector(mode, roots, around.home.as_deref())?;
        config.ssl_mode(match mode {
            Mode::Disable => SslMode::Disable,
            Mode::Prefer => SslMode::Prefer,
            Mode::Require | Mode::VerifyCa | Mode::VerifyFull => SslMode::Require,
        });
        let file = own.pass_file.or_else(|| around.pass_file.clone());
        let file = file.or_else(|| around.home.as_ref().map(|home| home.join(".pgpass")));
        let open_to_others = match file.filter(|_| config.get_password().is_none()) {
            Some(file) => add_password(&mut config, &file)?,
            None => None,
        };
        Ok(Address { config, tls, open_to_others })
    }

    /// The server and a database there, without what proves who asks.
    pub(crate) fn place(&self) -> String {
        let hosts = self.config.get_hosts().iter().map(|host| match host {
            Host::Tcp(name) => name.clone(),
            Host::Unix(dir) => dir.display().to_string(),
        });
        let hosts: Vec<String> = hosts.collect();
        format!("database {} of {}", self.config.get_dbname().unwrap_or("of your name"), hosts.join(", "))
    }
}

impl Own {
    /// Takes them out of a URL; nothing where one of them is not UTF-8.
    fn taken_from(url: &str) -> Option<(String, Own)> {
        let mut own = Own::default();
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
        asked.push(Asked { host, port, database: database.clone(), user: user.clone() });
    }
    match passwords::of(file, &asked)? {
        passwords::Found::OpenToOthers => Ok(Some(file.to_owned())),
        passwords::Found::Same(password) => {
            config.password(password);
            Ok(None)
        }
        passwords::Found::Nothing => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_parameters_are_taken_out_of_a_url() {
        let url =
            "postgres://me:a?b@h/site?sslmode=verify-full&options=-c%20x&sslrootcert=%2Fa%20b&passfile=/p";
        let (rest, own) = Own::taken_from(url).unwrap();
        assert_eq!(rest, "postgres://me:a?b@h/site?options=-c%20x");
        assert_eq!(
            (own.mode.as_deref(), own.root_cert.as_deref()),
            (Some("verify-full"), Some(Path::new("/a b")))
        );
        assert_eq!(own.pass_file.as_deref(), Some(Path::new("/p")));
        for same in ["postgres://h/site", "postgres://me:a?b@h", "postgres://h/site?options=x"] {
            assert_eq!(Own::taken_from(same).unwrap().0, same);
        }
        assert_eq!(Own::taken_from("postgres://h/s?sslmode=require").unwrap().0, "postgres://h/s");
        assert!(Own::taken_from("postgres://h/s?sslmode=%ff").is_none());
    }
}
