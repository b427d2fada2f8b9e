//! The file of passwords that PostgreSQL's own library has: `HOST:PORT:DATABASE:USER:PASSWORD` in a line, with `*` for
//! any of the first four, and `\` in front of `:` and `\` that belong to a value.

use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::{PoolError, PoolResult};

/// Upper limit of a password file, in bytes.
const FILE_MAX: u64 = 1 << 20;
/// Directories of the server's socket that count as `localhost`, as Debian's library and the original have them.
const SOCKET_DIRS: [&str; 2] = ["/var/run/postgresql", "/tmp"];

/// Search key of a password.
pub(super) struct PasswordQuery {
    pub host: String,
    pub port: u16,
    pub database: String,
    pub user: String,
}

/// Result of a look-up in a password file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PasswordResult {
    /// The same for all that were asked for.
    Same(Vec<u8>),
    /// No entry.
    Nothing,
    /// Ignored, because others can read the file.
    OpenToOthers,
}

/// Looks into a file; that there is none is no error.
pub(super) fn of(file: &Path, asked: &[PasswordQuery]) -> PoolResult<PasswordResult> {
    let failed = |error: std::io::Error| PoolError::Path {
        path: file.to_owned(),
        cause: format!("{error}, so no password is found there"),
        remedy: "name another file: PGPASSFILE".into(),
    };
    let found = match std::fs::metadata(file) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(PasswordResult::Nothing);
        }
        found => found.map_err(failed)?,
    };
    if !found.is_file() || found.len() > FILE_MAX {
        return Ok(PasswordResult::Nothing);
    }
    if found.permissions().mode() & 0o077 != 0 {
        return Ok(PasswordResult::OpenToOthers);
    }
    let text = std::fs::read(file).map_err(failed)?;
    let mut passwords: Vec<Option<Vec<u8>>> = asked.iter().map(|asked| password(&text, asked)).collect();
    passwords.dedup();
    // With several hosts there is one password for all: none is told the password of another.
    Ok(match (passwords.pop(), passwords.is_empty()) {
        (Some(Some(password)), true) => PasswordResult::Same(password),
        _ => PasswordResult::Nothing,
    })
}

/// Returns the password of the first line that is meant.
fn password(text: &[u8], asked: &PasswordQuery) -> Option<Vec<u8>> {
    let host = if SOCKET_DIRS.contains(&asked.host.as_str()) { "localhost" } else { &asked.host };
    let wanted =
        [host, &asked.port.to_string(), &asked.database, &asked.user].map(|text| text.as_bytes().to_vec());
    let lines = text.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    lines.filter(|line| !line.starts_with(b"#")).find_map(|line| {
        let mut rest = line;
        for wanted in &wanted {
            let (raw, value, behind) = field(rest);
            if behind.is_none() || raw != b"*" && value != *wanted {
                return None;
            }
            rest = behind?;
        }
        let (_, password, _) = field(rest);
        Some(password).filter(|password| !password.is_empty())
    })
}

/// Returns a field as it is written, what it means, and what is behind its colon, if there is one.
fn field(text: &[u8]) -> (&[u8], Vec<u8>, Option<&[u8]>) {
    let (mut value, mut bytes) = (Vec::new(), text.iter().enumerate());
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b':' => return (text.get(..at).unwrap_or(text), value, text.get(at + 1..)),
            b'\\' => value.push(bytes.next().map_or(b'\\', |(_, next)| *next)),
            byte => value.push(*byte),
        }
    }
    (text, value, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(host: &str, user: &str) -> PasswordQuery {
        PasswordQuery { host: host.into(), port: 5432, database: "site".into(), user: user.into() }
    }

    #[test]
    fn the_first_line_that_is_meant_counts() {
        let text = b"# a:5432:site:me:comment\n\nshort:5432\na:5432:site:me:first\r\na:*:*:me:second\n*:*:*:y\\:o\\\\u:p\\:w\\\\d:rest\n\
                     localhost:5432:site:sock:local\n*:*:*:empty:\n*:*:*:*:any";
        for (host, user, password_is) in [
            ("a", "me", "first"),
            ("b", "me", "any"),
            ("b", "y:o\\u", "p:w\\d"),
            ("/var/run/postgresql", "sock", "local"),
            ("/elsewhere", "sock", "any"),
            ("b", "*", "any"),
        ] {
            assert_eq!(
                password(text, &asked(host, user)),
                Some(password_is.as_bytes().to_vec()),
                "{host} {user}"
            );
        }
        assert_eq!(password(b"a:5432:site:me", &asked("a", "me")), None);
        assert_eq!(password(b"\\*:5432:site:me:p", &asked("a", "me")), None);
    }

    #[test]
    fn a_file_that_others_may_read_is_not_read_and_hosts_share_no_passwords() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pass");
        let hosts = [asked("a", "me"), asked("b", "me")];
        assert_eq!(of(&file, &hosts).unwrap(), PasswordResult::Nothing);
        std::fs::write(&file, "a:*:*:me:one\nb:*:*:me:two\n").unwrap();
        for (mode, found) in [
            (0o644, PasswordResult::OpenToOthers),
            (0o620, PasswordResult::OpenToOthers),
            (0o600, PasswordResult::Same(b"one".to_vec())),
        ] {
            std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
            assert_eq!(of(&file, &hosts[..1]).unwrap(), found, "{mode:o}");
        }
        assert_eq!(of(&file, &hosts).unwrap(), PasswordResult::Nothing);
        assert_eq!(of(dir.path(), &hosts).unwrap(), PasswordResult::Nothing);
    }
}
