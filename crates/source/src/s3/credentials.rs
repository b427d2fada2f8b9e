//! Credentials from the environment, or from the files of the AWS tools.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::error::Cause;
use crate::{SourceError, SourceResult};

/// Largest file of credentials or certificates that is read, in bytes.
const FILE_MAX: u64 = 4 << 20;

/// Environment variables of S3 tools, as read by the entry point. `Debug` shows no secrets.
#[derive(Clone, Default)]
pub struct Environment {
    variables: HashMap<&'static str, String>,
}

/// An access key with its secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// Access key id.
    pub id: String,
    /// Secret access key.
    pub secret: String,
    /// Session token of temporary credentials.
    pub token: Option<String>,
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Environment(..)")
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(..)")
    }
}

impl Environment {
    /// Names of the variables that are read.
    pub const NAMES: [&'static str; 13] = [
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
        "AWS_ENDPOINT_URL_S3",
        "AWS_ENDPOINT_URL",
        "AWS_PROFILE",
        "AWS_SHARED_CREDENTIALS_FILE",
        "AWS_CONFIG_FILE",
        "AWS_CA_BUNDLE",
        "SSL_CERT_FILE",
        "HOME",
    ];

    /// Reads every variable. Empty ones count as unset.
    pub fn read(mut variable: impl FnMut(&str) -> Option<String>) -> Environment {
        let found = Self::NAMES.into_iter().filter_map(|name| Some((name, variable(name)?)));
        Environment { variables: found.filter(|(_, value)| !value.is_empty()).collect() }
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    fn first(&self, names: &[&str]) -> Option<String> {
        names.iter().find_map(|name| self.get(name)).map(str::to_owned)
    }

    /// Returns the endpoint for sources that do not set one.
    pub fn endpoint(&self) -> Option<String> {
        self.first(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]).or_else(|| self.profile("endpoint_url"))
    }

    /// Returns the region for sources that do not set one.
    pub fn region(&self) -> Option<String> {
        self.first(&["AWS_REGION", "AWS_DEFAULT_REGION"]).or_else(|| self.profile("region"))
    }

    /// Returns the file of trusted certificates, in PEM.
    pub fn certificates(&self) -> Option<PathBuf> {
        self.first(&["AWS_CA_BUNDLE", "SSL_CERT_FILE"]).map(PathBuf::from)
    }

    /// Returns the credentials. Files are read again at each call, because their owner may renew them.
    ///
    /// # Errors
    /// [`Cause::Denied`] when there are none, with where they were looked for.
    pub fn keys(&self, object: &str) -> SourceResult<Credentials> {
        let variable = |name| self.get(name).map(str::to_owned);
        // Both from one place: the id of one pair does not go with the secret of another.
        let from_variables = || {
            let (id, secret) = (variable("AWS_ACCESS_KEY_ID")?, variable("AWS_SECRET_ACCESS_KEY")?);
            Some(Credentials { id, secret, token: variable("AWS_SESSION_TOKEN") })
        };
        let from_profile = || {
            let (id, secret) = (self.profile("aws_access_key_id")?, self.profile("aws_secret_access_key")?);
            Some(Credentials { id, secret, token: self.profile("aws_session_token") })
        };
        from_variables().or_else(from_profile).ok_or_else(|| {
            let profile = self.profile_name();
            let text = format!(
                "{object}: no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for this command (daemons have \
                 those of 'up' or 'run'), or give profile '{profile}' some in ~/.aws/credentials"
            );
            SourceError::new(Cause::Denied, text)
        })
    }

    fn profile_name(&self) -> &str {
        self.get("AWS_PROFILE").unwrap_or("default")
    }

    /// Returns a value of the profile from the credentials file or the configuration file.
    fn profile(&self, key: &str) -> Option<String> {
        let name = self.profile_name();
        let home = || self.get("HOME").map(|home| Path::new(home).join(".aws"));
        let file = |variable: &str, default: &str| {
            self.get(variable).map(PathBuf::from).or_else(|| Some(home()?.join(default)))
        };
        // The AWS tools name profiles so in this file, and without the word in the other.
        let in_config = if name == "default" { name.to_owned() } else { format!("profile {name}") };
        let find = |file: Option<PathBuf>, section: &str| value_in(&read_small(&file?)?, section, key);
        find(file("AWS_SHARED_CREDENTIALS_FILE", "credentials"), name)
            .or_else(|| find(file("AWS_CONFIG_FILE", "config"), &in_config))
    }
}

/// Reads a text file; `None` if it does not exist or is too large.
pub fn read_small(path: &Path) -> Option<String> {
    use std::io::Read;
    let mut text = String::new();
    // One byte more than is accepted, so that a longer file is told from one that is cut.
    std::fs::File::open(path).ok()?.take(FILE_MAX + 1).read_to_string(&mut text).ok()?;
    (text.len() as u64 <= FILE_MAX).then_some(text)
}

/// Returns a value from a section of an INI file.
fn value_in(text: &str, section: &str, key: &str) -> Option<String> {
    let mut is_here = false;
    for line in text.lines() {
        let trimmed = line.trim();
        if let Some(name) = trimmed.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            is_here = name.split_whitespace().eq(section.split_whitespace());
        }
        // Indented lines are nested settings of the line above.
        let is_nested = line.starts_with([' ', '\t']);
        let is_comment = trimmed.starts_with(['#', ';']);
        if let (true, false, false, Some((name, value))) =
            (is_here, is_nested, is_comment, trimmed.split_once('='))
            && name.trim() == key
            && !value.trim().is_empty()
        {
            return Some(value.trim().to_owned());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &[(&'static str, &str)]) -> Environment {
        let find = |name: &str| pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1.to_owned());
        Environment::read(find)
    }

    #[test]
    fn variables_come_before_files_and_nothing_is_shown() {
        let here = with(&[
            ("AWS_ACCESS_KEY_ID", "id"),
            ("AWS_SECRET_ACCESS_KEY", "hidden"),
            ("AWS_SESSION_TOKEN", ""),
            ("AWS_ENDPOINT_URL", "http://all"),
            ("AWS_ENDPOINT_URL_S3", "http://s3"),
        ]);
        let keys = here.keys("s3://b/").unwrap();
        assert_eq!(keys, Credentials { id: "id".into(), secret: "hidden".into(), token: None });
        assert_eq!(here.endpoint().as_deref(), Some("http://s3"));
        assert!(!format!("{here:?} {keys:?}").contains("hidden"));
    }

    #[test]
    fn profiles_are_read_as_other_tools_read_them() {
        let dir = tempfile::tempdir().unwrap();
        let credentials = "# c\n[other]\naws_access_key_id = no\n[lab]\naws_access_key_id=id\n\
                           aws_secret_access_key =  a=b+/\n  nested = no\n";
        std::fs::create_dir(dir.path().join(".aws")).unwrap();
        std::fs::write(dir.path().join(".aws/credentials"), credentials).unwrap();
        let config = "[profile lab]\nregion = here\n s3 =\n   endpoint_url = no\nendpoint_url = http://h\n";
        std::fs::write(dir.path().join(".aws/config"), config).unwrap();
        let home = dir.path().to_str().unwrap();
        let here = with(&[("HOME", home), ("AWS_PROFILE", "lab")]);
        let keys = here.keys("s3://b/").unwrap();
        assert_eq!(keys, Credentials { id: "id".into(), secret: "a=b+/".into(), token: None });
        assert_eq!((here.region().as_deref(), here.endpoint().as_deref()), (Some("here"), Some("http://h")));
        let refused = with(&[("HOME", home)]).keys("s3://b/").unwrap_err();
        assert_eq!(refused.cause(), Cause::Denied);
        assert!(refused.to_string().contains("profile 'default'"), "{refused}");
    }
}
