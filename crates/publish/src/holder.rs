//! Reading pieces of files where they are.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bivouac_source::{Environment, S3Place, S3Source, Source, Version};
use parking_lot::Mutex;
use ureq::http::HeaderMap;
use url::Url;

use crate::error::{Cause, PublishError};
use crate::place::Place;
use crate::web::{Sent, Web};

/// Bytes that are moved at a time.
const BUFFER: usize = 1 << 20;
/// How long a server may take to say something of a file, since pieces wait for that: where many begin at the same time,
/// it comes later than usual, and is worth most.
const LOOK: Duration = Duration::from_secs(3);

/// What there is of the piece of a file that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Where the piece begins.
    pub offset: u64,
    /// Its length.
    pub len: u64,
    /// The size of the whole file.
    pub size: u64,
}

/// Why a piece did not come.
#[derive(Debug)]
pub enum Trouble {
    /// It may come later.
    Passing(String),
    /// This file does not come from there.
    Lacks(String),
    /// Nothing comes from there.
    Refused(String),
    /// Who takes the bytes cannot.
    Here(std::io::Error),
}

/// What a server says of a file.
pub(crate) struct Seen {
    /// Its headers.
    pub headers: HeaderMap,
    /// Where the file is.
    pub url: Url,
}

/// Takes bytes as they come.
pub type Sink<'a> = &'a mut dyn FnMut(&[u8]) -> std::io::Result<()>;

/// The ways to places, made when they are needed.
pub struct Readers<'w> {
    here: Environment,
    web: &'w Web,
    /// Where credentials are used besides the store that the environment names.
    trusted: HashSet<String>,
    stores: Mutex<HashMap<String, Arc<S3Source>>>,
    /// How objects looked when they were first read.
    versions: Mutex<HashMap<String, Version>>,
}

impl<'w> Readers<'w> {
    /// With what the environment says of object stores.
    #[must_use]
    pub fn new(here: &Environment, web: &'w Web) -> Readers<'w> {
        let (stores, versions) = (Mutex::default(), Mutex::default());
        let trusted = here.endpoint().into_iter().collect();
        Readers { here: here.clone(), web, trusted, stores, versions }
    }

    /// Uses credentials for the store of a place that the user named, too.
    pub fn trust(&mut self, place: &Place) {
        if let Place::S3 { endpoint: Some(endpoint), .. } = place {
            self.trusted.insert(endpoint.clone());
        }
    }

    /// Reads a piece of the file at a URL.
    pub(crate) fn read(&self, url: &str, access: Access, sink: Sink<'_>) -> Result<(), Trouble> {
        match Place::of_url(url) {
            Some(Place::Path(path)) => read_path(&path, access, sink),
            Some(Place::Web(url)) => self.read_web(&url, access, sink),
            Some(Place::S3 { bucket, key, endpoint, region }) => {
                let place = S3Place { bucket, prefix: String::new(), endpoint, region };
                self.read_store(url, place, key.as_bytes(), access, sink)
            }
            None => Err(Trouble::Lacks(format!("{url:?} is no place that files are fetched from"))),
        }
    }

    /// Asks what a server says of the file at a URL, within [`LOOK`]; nothing where that is at no server.
    pub(crate) fn look(&self, url: &str) -> Result<Option<Seen>, Trouble> {
        let Some(Place::Web(url)) = Place::of_url(url) else { return Ok(None) };
        let sent = Sent { within: Some(LOOK), ..Sent::default() };
        let mut answer = self.web.ask("HEAD", &url, &sent).map_err(of_error)?;
        match answer.status {
            200 => Ok(Some(Seen { headers: answer.headers, url })),
            _ => Err(of_error(answer.refusal())),
        }
    }

    fn read_web(&self, url: &Url, access: Access, sink: Sink<'_>) -> Result<(), Trouble> {
        let Access { offset, len, size } = access;
        let is_whole = offset == 0 && len == size;
        let mut headers = vec![("accept-encoding", "identity".to_owned())];
        if !is_whole {
            headers.push(("range", format!("bytes={offset}-{}", offset + len - 1)));
        }
        let mut answer = self.web.ask("GET", url, &Sent { headers, ..Sent::default() }).map_err(of_error)?;
        match answer.status {
            200 if is_whole => {
                let said = answer.header("content-length").and_then(|len| len.parse::<u64>().ok());
                if said.is_some_and(|said| said != size) {
                    return Err(Trouble::Lacks("has another size now".to_owned()));
                }
            }
            200 => return Err(Trouble::Lacks("does not send parts of files".to_owned())),
            206 => check_range(answer.header("content-range"), access).map_err(Trouble::Lacks)?,
            416 => return Err(Trouble::Lacks("has another size now".to_owned())),
            _ => return Err(of_error(answer.refusal())),
        }
        let mut reader = answer.reader().take(len);
        let mut buffer = vec![0; buffer_len(len)];
        let mut done = 0;
        loop {
            match reader.read(&mut buffer) {
                Ok(0) if done == len => return Ok(()),
                Ok(0) => return Err(Trouble::Passing("the connection broke off".to_owned())),
                Ok(read) => {
                    done += read as u64;
                    sink(buffer.get(..read).unwrap_or_default()).map_err(Trouble::Here)?;
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Trouble::Passing(error.to_string())),
            }
        }
    }

    fn read_store(
        &self,
        url: &str,
        place: S3Place,
        path: &[u8],
        access: Access,
        sink: Sink<'_>,
    ) -> Result<(), Trouble> {
        // Anybody can write an entry, and have requests signed that way.
        if let Some(endpoint) = place.endpoint.as_ref().filter(|endpoint| !self.trusted.contains(*endpoint)) {
            let remedy = "if you trust it, set AWS_ENDPOINT_URL_S3 to it";
            return Err(Trouble::Refused(format!(
                "no credentials are used for the store {endpoint}; {remedy}"
            )));
        }
        let store = self.store(place).map_err(of_error)?;
        let known = self.versions.lock().get(url).cloned();
        let version = match known {
            Some(version) => version,
            None => {
                let version = store.stat(path).map_err(|error| of_error(error.into()))?.version;
                self.versions.lock().insert(url.to_owned(), version.clone());
                version
            }
        };
        if version.size != access.size {
            return Err(Trouble::Lacks("has another size now".to_owned()));
        }
        let mut buffer = vec![0; buffer_len(access.len)];
        in_parts(access, &mut buffer, sink, |offset, into| {
            store.read(path, &version, offset, into).map_err(|error| match error.cause() {
                bivouac_source::Cause::Changed => Trouble::Lacks("changed meanwhile".to_owned()),
                _ => of_error(error.into()),
            })
        })
    }

    fn store(&self, place: S3Place) -> Result<Arc<S3Source>, PublishError> {
        let name = format!("{} {:?} {:?}", place.bucket, place.endpoint, place.region);
        let mut stores = self.stores.lock();
        if let Some(store) = stores.get(&name) {
            return Ok(Arc::clone(store));
        }
        let store = Arc::new(S3Source::open(&place, &self.here)?);
        stores.insert(name, Arc::clone(&store));
        Ok(store)
    }
}

fn buffer_len(len: u64) -> usize {
    usize::try_from(len).unwrap_or(BUFFER).min(BUFFER)
}

fn of_error(error: PublishError) -> Trouble {
    let text = error.to_string();
    match error.cause() {
        Cause::NotFound => Trouble::Lacks(text),
        Cause::Denied | Cause::Usage => Trouble::Refused(text),
        _ => Trouble::Passing(text),
    }
}

/// What a server says to have sent is what it was asked for.
fn check_range(said: Option<&str>, access: Access) -> Result<(), String> {
    let wrong = || "sends other parts than it is asked for".to_owned();
    let (range, size) =
        said.and_then(|said| said.strip_prefix("bytes ")?.split_once('/')).ok_or_else(wrong)?;
    let expected = format!("{}-{}", access.offset, access.offset + access.len.saturating_sub(1));
    if range.trim() != expected {
        return Err(wrong());
    }
    if size != "*" && size.trim().parse() != Ok(access.size) {
        return Err("has another size now".to_owned());
    }
    Ok(())
}

fn read_path(path: &Path, access: Access, sink: Sink<'_>) -> Result<(), Trouble> {
    let lacks = |error: std::io::Error| Trouble::Lacks(format!("{}: {error}", path.display()));
    // What an entry names may be a pipe, which would be waited for.
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
    let file = File::options().read(true).custom_flags(flags).open(path).map_err(lacks)?;
    let seen = file.metadata().map_err(lacks)?;
    if !seen.is_file() {
        return Err(Trouble::Lacks(format!("{}: is no file", path.display())));
    }
    if seen.len() != access.size {
        return Err(Trouble::Lacks("has another size now".to_owned()));
    }
    let mut buffer = vec![0; buffer_len(access.len)];
    in_parts(access, &mut buffer, sink, |offset, into| {
        let failed = |error: std::io::Error| Trouble::Passing(format!("{}: {error}", path.display()));
        file.read_at(into, offset).map_err(failed)
    })
}

/// Passes a piece on, buffer by buffer.
fn in_parts(
    access: Access,
    buffer: &mut [u8],
    sink: Sink<'_>,
    mut read: impl FnMut(u64, &mut [u8]) -> Result<usize, Trouble>,
) -> Result<(), Trouble> {
    let mut done = 0;
    while done < access.len {
        let want = buffer_len(access.len - done).min(buffer.len());
        let into = buffer.get_mut(..want).unwrap_or_default();
        let len = read(access.offset + done, into)?;
        if len == 0 {
            return Err(Trouble::Lacks("has another size now".to_owned()));
        }
        sink(into.get(..len).unwrap_or_default()).map_err(Trouble::Here)?;
        done += len as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str, access: Access) -> Result<Vec<u8>, Trouble> {
        let (here, web) = (Environment::default(), Web::new(&Environment::default()));
        let mut bytes = Vec::new();
        Readers::new(&here, &web).read(url, access, &mut |part| {
            bytes.extend_from_slice(part);
            Ok(())
        })?;
        Ok(bytes)
    }

    #[test]
    fn files_are_read_in_pieces_and_nothing_else_is() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a b");
        std::fs::write(&file, "0123456789").unwrap();
        let url = format!("file://{}/a%20b", dir.path().display());
        let access = Access { offset: 3, len: 4, size: 10 };
        assert_eq!(read(&url, access).unwrap(), b"3456");
        assert!(matches!(read(&url, Access { size: 9, ..access }), Err(Trouble::Lacks(_))));
        assert!(matches!(read(&format!("{url}x"), access), Err(Trouble::Lacks(_))));
        let pipe = dir.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        for url in
            [format!("file://{}/pipe", dir.path().display()), "file:///dev/zero".into(), "data:x".into()]
        {
            assert!(matches!(read(&url, access), Err(Trouble::Lacks(_))), "{url}");
        }
    }

    #[test]
    fn credentials_are_for_stores_that_the_user_named() {
        let access = Access { offset: 0, len: 1, size: 1 };
        let refusal = read("s3://bucket/key?endpoint=http://127.0.0.1:1", access);
        assert!(matches!(refusal, Err(Trouble::Refused(why)) if why.contains("AWS_ENDPOINT_URL_S3")));
    }

    #[test]
    fn servers_are_held_to_what_they_say() {
        let access = Access { offset: 3, len: 4, size: 10 };
        assert_eq!(check_range(Some("bytes 3-6/10"), access), Ok(()));
        assert_eq!(check_range(Some("bytes 3-6/*"), access), Ok(()));
        for wrong in
            [None, Some(""), Some("bytes 3-6"), Some("bytes 0-9/10"), Some("bytes 3-6/11"), Some("3-6/10")]
        {
            assert!(check_range(wrong, access).is_err(), "{wrong:?}");
        }
    }
}
