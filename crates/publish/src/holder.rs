//! Reading pieces of files where they are.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bivouac_source::{Environment, S3Location, S3Source, Source, Version};
use parking_lot::Mutex;
use ureq::http::HeaderMap;
use url::Url;

use crate::error::{Cause, PublishError};
use crate::place::Location;
use crate::web::{RequestOptions, Web};

/// Bytes that are moved at a time.
const BUFFER: usize = 1 << 20;
/// Timeout of a layout query, because pieces wait for it. When many fetches start at once, answers come later than
/// usual and are worth most.
const LOOK: Duration = Duration::from_secs(3);

/// The range of a file to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Offset of the range.
    pub offset: u64,
    /// Its length.
    pub len: u64,
    /// The size of the whole file.
    pub size: u64,
}

/// Reason why a range was not read.
#[derive(Debug)]
pub enum ReadError {
    /// A retry may succeed.
    Transient(String),
    /// This holder lacks the file.
    Lacks(String),
    /// The holder cannot serve it.
    Permanent(String),
    /// The receiver of the data failed.
    Local(std::io::Error),
}

/// A server's report about a file.
pub(crate) struct ServedFile {
    /// Its headers.
    pub headers: HeaderMap,
    /// URL of the file.
    pub url: Url,
}

/// Takes bytes as they come.
pub type Sink<'a> = &'a mut dyn FnMut(&[u8]) -> std::io::Result<()>;

/// The ways to places, made when they are needed.
pub struct Readers<'w> {
    here: Environment,
    web: &'w Web,
    /// Stores that receive credentials besides the one in the environment.
    trusted: HashSet<String>,
    stores: Mutex<HashMap<String, Arc<S3Source>>>,
    /// Versions of objects at their first read.
    versions: Mutex<HashMap<String, Version>>,
}

impl<'w> Readers<'w> {
    /// Creates readers with the environment's settings for object stores.
    #[must_use]
    pub fn new(here: &Environment, web: &'w Web) -> Readers<'w> {
        let (stores, versions) = (Mutex::default(), Mutex::default());
        let trusted = here.endpoint().into_iter().collect();
        Readers { here: here.clone(), web, trusted, stores, versions }
    }

    /// Uses credentials for the store of a place that the user named, too.
    pub fn trust(&mut self, place: &Location) {
        if let Location::S3 { endpoint: Some(endpoint), .. } = place {
            self.trusted.insert(endpoint.clone());
        }
    }

    /// Reads a piece of the file at a URL.
    pub(crate) fn read(&self, url: &str, access: Access, sink: Sink<'_>) -> Result<(), ReadError> {
        assert!(access.len > 0, "an empty part of {url} is asked for");
        match Location::of_url(url) {
            Some(Location::Path(path)) => read_path(&path, access, sink),
            Some(Location::Web(url)) => self.read_web(&url, access, sink),
            Some(Location::S3 { bucket, key, endpoint, region }) => {
                let place = S3Location { bucket, prefix: String::new(), endpoint, region };
                self.read_store(url, place, key.as_bytes(), access, sink)
            }
            None => Err(ReadError::Lacks(format!("{url:?} is no place that files are fetched from"))),
        }
    }

    /// Queries a server about the file at a URL, within [`LOOK`]; `None` for other holders.
    pub(crate) fn look(&self, url: &str) -> Result<Option<ServedFile>, ReadError> {
        let Some(Location::Web(url)) = Location::of_url(url) else { return Ok(None) };
        let sent = RequestOptions { within: Some(LOOK), ..RequestOptions::default() };
        let mut answer = self.web.ask("HEAD", &url, &sent).map_err(of_error)?;
        match answer.status {
            200 => Ok(Some(ServedFile { headers: answer.headers, url })),
            _ => Err(of_error(answer.refusal())),
        }
    }

    fn read_web(&self, url: &Url, access: Access, sink: Sink<'_>) -> Result<(), ReadError> {
        let Access { offset, len, size } = access;
        let is_whole = offset == 0 && len == size;
        // The bytes of the file are compared, and an encoding of them would be others.
        let mut headers = vec![("accept-encoding", "identity".to_owned())];
        if !is_whole {
            headers.push(("range", format!("bytes={offset}-{}", offset + len - 1)));
        }
        let mut answer = self
            .web
            .ask("GET", url, &RequestOptions { headers, ..RequestOptions::default() })
            .map_err(of_error)?;
        match answer.status {
            200 if is_whole => {
                let said = answer.header("content-length").and_then(|len| len.parse::<u64>().ok());
                if said.is_some_and(|said| said != size) {
                    return Err(ReadError::Lacks("has another size now".to_owned()));
                }
            }
            // A server without ranges sends all from the beginning, which is not this piece.
            200 => return Err(ReadError::Lacks("does not send parts of files".to_owned())),
            206 => check_range(answer.header("content-range"), access).map_err(ReadError::Lacks)?,
            416 => return Err(ReadError::Lacks("has another size now".to_owned())),
            _ => return Err(of_error(answer.refusal())),
        }
        let mut reader = answer.reader().take(len);
        let mut buffer = vec![0; buffer_len(len)];
        let mut done = 0;
        loop {
            match reader.read(&mut buffer) {
                Ok(0) if done == len => return Ok(()),
                Ok(0) => return Err(ReadError::Transient("the connection broke off".to_owned())),
                Ok(read) => {
                    done += read as u64;
                    sink(buffer.get(..read).unwrap_or_default()).map_err(ReadError::Local)?;
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(ReadError::Transient(error.to_string())),
            }
        }
    }

    fn read_store(
        &self,
        url: &str,
        place: S3Location,
        path: &[u8],
        access: Access,
        sink: Sink<'_>,
    ) -> Result<(), ReadError> {
        // Anybody can write an entry, and have requests signed that way.
        if let Some(endpoint) = place.endpoint.as_ref().filter(|endpoint| !self.trusted.contains(*endpoint)) {
            let remedy = "if you trust it, set AWS_ENDPOINT_URL_S3 to it";
            return Err(ReadError::Permanent(format!(
                "no credentials are used for the store {endpoint}; {remedy}"
            )));
        }
        let store = self.store(place).map_err(of_error)?;
        // Of one version all pieces: an object that is replaced meanwhile is refused by the store.
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
            return Err(ReadError::Lacks("has another size now".to_owned()));
        }
        let mut buffer = vec![0; buffer_len(access.len)];
        in_parts(access, &mut buffer, sink, |offset, into| {
            store.read(path, &version, offset, into).map_err(|error| match error.cause() {
                bivouac_source::Cause::Changed => ReadError::Lacks("changed meanwhile".to_owned()),
                _ => of_error(error.into()),
            })
        })
    }

    fn store(&self, place: S3Location) -> Result<Arc<S3Source>, PublishError> {
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

fn of_error(error: PublishError) -> ReadError {
    let text = error.to_string();
    match error.cause() {
        Cause::NotFound => ReadError::Lacks(text),
        Cause::Denied | Cause::Usage => ReadError::Permanent(text),
        _ => ReadError::Transient(text),
    }
}

/// Checks that a server sent the requested range.
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

fn read_path(path: &Path, access: Access, sink: Sink<'_>) -> Result<(), ReadError> {
    let lacks = |error: std::io::Error| ReadError::Lacks(format!("{}: {error}", path.display()));
    // What an entry names may be a pipe, which would be waited for.
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
    let file = File::options().read(true).custom_flags(flags).open(path).map_err(lacks)?;
    let seen = file.metadata().map_err(lacks)?;
    if !seen.is_file() {
        return Err(ReadError::Lacks(format!("{}: is no file", path.display())));
    }
    if seen.len() != access.size {
        return Err(ReadError::Lacks("has another size now".to_owned()));
    }
    let mut buffer = vec![0; buffer_len(access.len)];
    in_parts(access, &mut buffer, sink, |offset, into| {
        let failed = |error: std::io::Error| ReadError::Transient(format!("{}: {error}", path.display()));
        file.read_at(into, offset).map_err(failed)
    })
}

/// Passes a piece on, buffer by buffer.
fn in_parts(
    access: Access,
    buffer: &mut [u8],
    sink: Sink<'_>,
    mut read: impl FnMut(u64, &mut [u8]) -> Result<usize, ReadError>,
) -> Result<(), ReadError> {
    let mut done = 0;
    while done < access.len {
        let want = buffer_len(access.len - done).min(buffer.len());
        let into = buffer.get_mut(..want).unwrap_or_default();
        let len = read(access.offset + done, into)?;
        if len == 0 {
            return Err(ReadError::Lacks("has another size now".to_owned()));
        }
        sink(into.get(..len).unwrap_or_default()).map_err(ReadError::Local)?;
        done += len as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str, access: Access) -> Result<Vec<u8>, ReadError> {
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
        assert!(matches!(read(&url, Access { size: 9, ..access }), Err(ReadError::Lacks(_))));
        assert!(matches!(read(&format!("{url}x"), access), Err(ReadError::Lacks(_))));
        let pipe = dir.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        for url in
            [format!("file://{}/pipe", dir.path().display()), "file:///dev/zero".into(), "data:x".into()]
        {
            assert!(matches!(read(&url, access), Err(ReadError::Lacks(_))), "{url}");
        }
    }

    #[test]
    fn credentials_are_for_stores_that_the_user_named() {
        let access = Access { offset: 0, len: 1, size: 1 };
        let refusal = read("s3://bucket/key?endpoint=http://127.0.0.1:1", access);
        assert!(matches!(refusal, Err(ReadError::Permanent(why)) if why.contains("AWS_ENDPOINT_URL_S3")));
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
