//! A server with TLS, certificates of an authority of the tests' own, and files of passwords: S439.

use std::path::{Path, PathBuf};

use bivouac_pool::{Pools, ServerEnvironment};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use crate::server::{Server, hand_over};

/// Of people, with what needs a backslash in the file of passwords.
const PASSWORD: &str = "it's:a\\secret";

struct Site {
    server: Server,
    dir: tempfile::TempDir,
}

/// An authority: its certificate, and what signs.
fn authority(name: &str) -> (String, Issuer<'static, KeyPair>) {
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    let key = KeyPair::generate().unwrap();
    let pem = params.self_signed(&key).unwrap().pem();
    (pem, Issuer::new(params, key))
}

impl Site {
    /// A server whose certificate is for `db.example` and 127.0.0.1, or not for the latter.
    fn start(names: &[&str]) -> Option<Site> {
        let dir = tempfile::tempdir().unwrap();
        let ((ours, signs), (theirs, _)) = (authority("ours"), authority("theirs"));
        std::fs::write(dir.path().join("ours.pem"), &ours).unwrap();
        std::fs::write(dir.path().join("theirs.pem"), theirs).unwrap();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &signs).unwrap();
        let server = Server::start_with_tls(|data| {
            for (name, text) in [("server.crt", certificate.pem()), ("server.key", key.serialize_pem())] {
                std::fs::write(data.join(name), text).unwrap();
                hand_over(&data.join(name));
            }
            let rules = "local all all trust\nhostssl site all 127.0.0.1/32 scram-sha-256\nhostnossl plain all 127.0.0.1/32 trust\n";
            std::fs::write(data.join("pg_hba.conf"), rules).unwrap();
            hand_over(&data.join("pg_hba.conf"));
        })?;
        server.make("site");
        server.make("plain");
        let quoted = PASSWORD.replace('\'', "''");
        server.client("site").batch_execute(&format!("ALTER ROLE tester PASSWORD '{quoted}'")).unwrap();
        Some(Site { server, dir })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Opens it with a mode and who is to have signed.
    fn open(&self, mode: &str, roots: Option<&str>) -> Result<Pools, String> {
        let roots =
            roots.map_or_else(String::new, |name| format!("&sslrootcert={}", self.file(name).display()));
        let url = format!("{}?sslmode={mode}{roots}", self.url("tester:it's%3Aa%5Csecret@", "site"));
        Pools::at(&url).map_err(|error| error.to_string())
    }

    fn url(&self, who: &str, name: &str) -> String {
        format!("postgres://{who}127.0.0.1:{}/{name}", self.server.port())
    }
}

fn refused(opened: Result<Pools, String>, parts: &[&str]) {
    let said = opened.map(|_| ()).unwrap_err();
    assert!(parts.iter().all(|part| said.contains(part)), "{said}");
    assert!(!said.contains("secret"), "{said}");
}

/// S439: each mode connects where it may, and only there. The server takes none without TLS, so what connects has it.
#[test]
fn a_server_is_believed_as_far_as_is_asked_for() {
    let Some(site) = Site::start(&["127.0.0.1", "db.example"]) else { return };
    for (mode, roots) in [
        ("prefer", None),
        ("require", None),
        ("require", Some("ours.pem")),
        ("verify-ca", Some("ours.pem")),
        ("verify-full", Some("ours.pem")),
    ] {
        let pools = site.open(mode, roots).unwrap_or_else(|said| panic!("{mode} {roots:?}: {said}"));
        assert_eq!(pools.rules().unwrap().days_max, 100);
    }
    for mode in ["require", "verify-ca", "verify-full"] {
        refused(site.open(mode, Some("theirs.pem")), &["certificate", "sslrootcert=FILE"]);
    }
    for mode in ["verify-ca", "verify-full"] {
        refused(site.open(mode, None), &[".postgresql/root.crt: is not there", "PGSSLROOTCERT"]);
        refused(site.open(mode, Some("missing.pem")), &["missing.pem", "PGSSLROOTCERT"]);
    }
    std::fs::write(site.file("none.pem"), "no certificate\n").unwrap();
    refused(site.open("verify-full", Some("none.pem")), &["none.pem: has no certificate"]);
    refused(site.open("disable", None), &["no encryption"]);
    refused(site.open("trusting", None), &["sslmode other than disable"]);
    // A database that takes none with TLS: what asks for it does not get it without.
    let plain = Pools::at(&format!("{}?sslmode=require", site.url("tester@", "plain")));
    refused(plain.map_err(|error| error.to_string()), &["pg_hba.conf"]);
    drop(Pools::at(&format!("{}?sslmode=disable", site.url("tester@", "plain"))).unwrap());
}

/// S439: a certificate for another host is refused by `verify-full` alone; the authority may be where the library has
/// it.
#[test]
fn a_certificate_is_for_a_host() {
    let Some(site) = Site::start(&["db.example"]) else { return };
    drop(site.open("verify-ca", Some("ours.pem")).unwrap());
    refused(site.open("verify-full", Some("ours.pem")), &["not valid for name", "the host that it is for"]);
    let home = site.file("home");
    std::fs::create_dir_all(home.join(".postgresql")).unwrap();
    std::fs::copy(site.file("theirs.pem"), home.join(".postgresql/root.crt")).unwrap();
    let around = ServerEnvironment {
        home: Some(home.clone()),
        ssl_mode: Some("require".into()),
        ..ServerEnvironment::default()
    };
    let url = site.url("tester:it's%3Aa%5Csecret@", "site");
    let open = |around: &ServerEnvironment| Pools::within(&url, around).map_err(|error| error.to_string());
    refused(open(&around), &["UnknownIssuer"]);
    drop(open(&ServerEnvironment { root_cert: Some(site.file("ours.pem")), ..around.clone() }).unwrap());
    std::fs::copy(site.file("ours.pem"), home.join(".postgresql/root.crt")).unwrap();
    drop(open(&around).unwrap());
}

/// S439: the password is in a file that only its user may read, else it is not read, and that is said.
#[test]
fn passwords_are_in_a_file() {
    let Some(site) = Site::start(&["127.0.0.1"]) else { return };
    let (url, home) = (site.url("tester@", "site"), site.file("home"));
    std::fs::create_dir(&home).unwrap();
    let around = ServerEnvironment { home: Some(home.clone()), ..ServerEnvironment::default() };
    let open = |around: &ServerEnvironment| Pools::within(&url, around).map_err(|error| error.to_string());
    refused(open(&around), &["password missing", "~/.pgpass"]);
    let line = |password: &str| {
        let escaped = password.replace('\\', "\\\\").replace(':', "\\:");
        format!("127.0.0.1:{}:site:tester:{escaped}\n", site.server.port())
    };
    let write = |file: &Path, text: &str, mode: u32| {
        std::fs::write(file, text).unwrap();
        std::fs::set_permissions(file, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    };
    write(&home.join(".pgpass"), &line(PASSWORD), 0o600);
    drop(open(&around).unwrap());
    write(&home.join(".pgpass"), &line(PASSWORD), 0o640);
    refused(open(&around), &[".pgpass is not read", "chmod 600"]);
    let other = site.file("other");
    write(&other, &line("wrong"), 0o600);
    let chosen = ServerEnvironment { pass_file: Some(other.clone()), ..around.clone() };
    refused(open(&chosen), &["password authentication failed"]);
    write(&other, &line(PASSWORD), 0o600);
    drop(open(&chosen).unwrap());
    // One that the URL names counts first, and a password in the URL before all.
    let named = format!("{url}?passfile={}", other.display());
    drop(Pools::within(&named, &around).unwrap());
}
