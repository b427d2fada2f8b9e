//! Where a catalogue keeps its files: small ones, put whole, listed one directory deep.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use bivouac_source::{Attrs, Environment, Expect, S3Place, S3Source, Source};
use roxmltree::Document;
use serde_json::Value;
use url::Url;

use crate::error::{Cause, PublishError, PublishResult};
use crate::place::Place;
use crate::web::{Sent, Web};

/// Largest list of a server, in bytes.
const LIST_MAX: usize = 64 << 20;
/// What entries are called until they are whole, and once they are being removed.
const HIDDEN: &str = ".bivouac-";

/// The files of a catalogue.
pub trait Shelf: Send + Sync {
    /// What it is called.
    fn name(&self) -> String;

    /// Puts the files of a new entry, the last one last: whoever sees that one sees all.
    ///
    /// # Errors
    /// [`Cause::Exists`] if there is such an entry; nothing is changed then.
    fn put(&self, entry: &str, files: &[(&str, &[u8])]) -> PublishResult<()>;

    /// A file of an entry, of at most so many bytes.
    ///
    /// # Errors
    /// [`Cause::NotFound`], [`Cause::Damaged`].
    fn get(&self, entry: &str, file: &str, max: usize) -> PublishResult<String>;

    /// The names of all directories there.
    ///
    /// # Errors
    /// What the place says.
    fn list(&self) -> PublishResult<Vec<String>>;

    /// Removes files of an entry, the first one first: whoever does not see that one sees none.
    ///
    /// # Errors
    /// [`Cause::NotFound`] if the first is not there.
    fn remove(&self, entry: &str, files: &[&str]) -> PublishResult<()>;
}

/// The files at a place.
///
/// # Errors
/// That it is none, or that there are no credentials for it.
pub fn open<'a>(place: &Place, here: &Environment, web: &'a Web) -> PublishResult<Box<dyn Shelf + 'a>> {
    match place {
        Place::Path(path) => Ok(Box::new(Dir(path.clone()))),
        Place::S3 { bucket, key, endpoint, region } => {
            let slash = if key.is_empty() { "" } else { "/" };
            let prefix = format!("{key}{slash}");
            let (bucket, endpoint, region) = (bucket.clone(), endpoint.clone(), region.clone());
            let store = S3Source::open(&S3Place { bucket, prefix, endpoint, region }, here)?;
            Ok(Box::new(Bucket { store, name: place.url()? }))
        }
        Place::Web(url) => Ok(Box::new(Server { url: url.clone(), web })),
    }
}

fn exists(what: &str) -> PublishError {
    PublishError::new(Cause::Exists, format_args!("{what}: is there already"))
}

fn too_large(what: &str) -> PublishError {
    PublishError::new(Cause::Damaged, format_args!("{what}: is too large, or no text"))
}

struct Dir(PathBuf);

impl Dir {
    /// Writes the files into a directory that nobody takes for an entry, and has all of it on the disk.
    fn draft(&self, dir: &Path, files: &[(&str, &[u8])]) -> std::io::Result<()> {
        fs::create_dir(dir)?;
        for (name, bytes) in files {
            let mut file = fs::File::create_new(dir.join(name))?;
            file.write_all(bytes)?;
            file.sync_all()?;
        }
        fs::File::open(dir)?.sync_all()
    }
}

impl Shelf for Dir {
    fn name(&self) -> String {
        self.0.display().to_string()
    }

    fn put(&self, entry: &str, files: &[(&str, &[u8])]) -> PublishResult<()> {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        let (draft, place) = (self.0.join(format!("{HIDDEN}new-{entry}")), self.0.join(entry));
        let written =
            self.draft(&draft, files).map_err(|error| PublishError::system(draft.display(), &error));
        let named = written.and_then(|()| {
            match renameat_with(CWD, &draft, CWD, &place, RenameFlags::NOREPLACE) {
                Err(rustix::io::Errno::EXIST) => Err(exists(&place.display().to_string())),
                // A directory is renamed onto an empty one at most, so nothing is lost without the flag either.
                Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
                    fs::rename(&draft, &place).map_err(|error| PublishError::system(place.display(), &error))
                }
                other => other.map_err(|error| PublishError::system(place.display(), &error.into())),
            }
        });
        if named.is_err() {
            let _what_else_is_left = fs::remove_dir_all(&draft);
        }
        named?;
        let synced = fs::File::open(&self.0).and_then(|dir| dir.sync_all());
        synced.map_err(|error| PublishError::system(self.0.display(), &error))
    }

    fn get(&self, entry: &str, file: &str, max: usize) -> PublishResult<String> {
        let path = self.0.join(entry).join(file);
        let failed = |error| PublishError::system(path.display(), &error);
        // What is no file, such as a pipe, is not waited for.
        let seen = fs::metadata(&path).map_err(failed)?;
        if !seen.is_file() {
            return Err(PublishError::new(Cause::Damaged, format_args!("{}: is no file", path.display())));
        }
        let mut text = String::new();
        let read = fs::File::open(&path).and_then(|file| file.take(max as u64 + 1).read_to_string(&mut text));
        match read {
            Ok(len) if len <= max => Ok(text),
            Ok(_) => Err(too_large(&path.display().to_string())),
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                Err(too_large(&path.display().to_string()))
            }
            Err(error) => Err(failed(error)),
        }
    }

    fn list(&self) -> PublishResult<Vec<String>> {
        let failed = |error| PublishError::system(self.0.display(), &error);
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.0).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
            names.extend(entry.file_name().into_string().ok().filter(|_| is_dir));
        }
        Ok(names)
    }

    fn remove(&self, entry: &str, files: &[&str]) -> PublishResult<()> {
        let (place, gone) = (self.0.join(entry), self.0.join(format!("{HIDDEN}old-{entry}")));
        let first = place.join(files.first().copied().unwrap_or_default());
        fs::symlink_metadata(&first).map_err(|error| PublishError::system(place.display(), &error))?;
        fs::rename(&place, &gone).map_err(|error| PublishError::system(place.display(), &error))?;
        for file in files {
            match fs::remove_file(gone.join(file)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(PublishError::system(gone.display(), &error));
                }
                _ => {}
            }
        }
        // What else somebody put there is theirs.
        fs::remove_dir(&gone).map_err(|error| PublishError::system(gone.display(), &error))
    }
}

struct Bucket {
    store: S3Source,
    name: String,
}

impl Bucket {
    fn path(entry: &str, file: &str) -> Vec<u8> {
        format!("{entry}/{file}").into_bytes()
    }

    fn put_file(&self, path: &[u8], bytes: &[u8]) -> PublishResult<()> {
        let (store, attrs) = (&self.store, Attrs { perm: 0o644, ..Attrs::default() });
        let size = bytes.len() as u64;
        let upload = store.begin(path, size, &attrs)?;
        let put = || {
            let len = usize::try_from(store.piece_size(size).unwrap_or(size)).unwrap_or(usize::MAX).max(1);
            let mut pieces = Vec::new();
            for (number, piece) in bytes.chunks(len).enumerate() {
                pieces.push(store.put(&upload, (number * len) as u64, piece)?);
            }
            store.verify(&upload, &pieces)?;
            store.commit(&upload, &pieces, &attrs, &Expect::Absent)
        };
        match put() {
            Ok(_) => Ok(()),
            Err(error) => {
                let _as_far_as_it_goes = store.abort(&upload);
                Err(error.into())
            }
        }
    }
}

impl Shelf for Bucket {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn put(&self, entry: &str, files: &[(&str, &[u8])]) -> PublishResult<()> {
        let mut done: Vec<Vec<u8>> = Vec::new();
        for (file, bytes) in files {
            let path = Bucket::path(entry, file);
            if let Err(error) = self.put_file(&path, bytes) {
                done.iter().for_each(|path| drop(self.store.remove(path, None)));
                return Err(error);
            }
            done.push(path);
        }
        Ok(())
    }

    fn get(&self, entry: &str, file: &str, max: usize) -> PublishResult<String> {
        let path = Bucket::path(entry, file);
        let version = self.store.stat(&path)?.version;
        let what = format!("{}/{entry}/{file}", self.name);
        let size =
            usize::try_from(version.size).ok().filter(|size| *size <= max).ok_or_else(|| too_large(&what))?;
        let mut bytes = vec![0; size];
        let read = if size == 0 { 0 } else { self.store.read(&path, &version, 0, &mut bytes)? };
        bytes.truncate(read);
        String::from_utf8(bytes).map_err(|_| too_large(&what))
    }

    fn list(&self) -> PublishResult<Vec<String>> {
        let entries = self.store.list(b"")?.into_iter().filter(|entry| entry.meta.is_dir());
        Ok(entries.filter_map(|entry| String::from_utf8(entry.name).ok()).collect())
    }

    fn remove(&self, entry: &str, files: &[&str]) -> PublishResult<()> {
        for (number, file) in files.iter().enumerate() {
            let path = Bucket::path(entry, file);
            if number == 0 {
                self.store.stat(&path)?;
            }
            self.store.remove(&path, None)?;
        }
        Ok(())
    }
}

struct Server<'w> {
    url: Url,
    web: &'w Web,
}

impl Server<'_> {
    fn at(&self, name: &str) -> Url {
        match Place::Web(self.url.clone()).join(name) {
            Place::Web(url) => url,
            _ => self.url.clone(),
        }
    }

    /// A directory's own URL.
    fn dir(&self) -> Url {
        let mut url = self.url.clone();
        if !url.path().ends_with('/') {
            url.set_path(&format!("{}/", url.path()));
        }
        url
    }

    fn put_file(&self, name: &str, bytes: &[u8]) -> PublishResult<()> {
        let headers = vec![("if-none-match", "*".to_owned())];
        let mut answer = self.web.ask("PUT", &self.at(name), &Sent { headers, body: Some(bytes) })?;
        if (200..300).contains(&answer.status) { Ok(()) } else { Err(answer.refusal()) }
    }

    fn delete(&self, name: &str) -> PublishResult<()> {
        let mut answer = self.web.ask("DELETE", &self.at(name), &Sent::default())?;
        if (200..300).contains(&answer.status) { Ok(()) } else { Err(answer.refusal()) }
    }

    /// The list that servers make for programs: formations, and nginx with its format json.
    fn list_json(&self) -> PublishResult<Option<Vec<String>>> {
        let headers = vec![("accept", "application/json".to_owned())];
        let mut answer = self.web.ask("GET", &self.dir(), &Sent { headers, body: None })?;
        if answer.status != 200 {
            return Err(answer.refusal());
        }
        if !answer.header("content-type").is_some_and(|kind| kind.starts_with("application/json")) {
            return Ok(None);
        }
        let list: Value = serde_json::from_str(&answer.text(LIST_MAX)?).unwrap_or_default();
        let names = list.as_array().map(|all| all.iter().filter_map(|entry| entry.get("name")?.as_str()));
        Ok(names.map(|names| names.map(|name| name.trim_end_matches('/').to_owned()).collect()))
    }

    /// The list of WebDAV (RFC 4918, 9.1).
    fn list_dav(&self) -> PublishResult<Option<Vec<String>>> {
        let headers = vec![("depth", "1".to_owned())];
        let mut answer = self.web.ask("PROPFIND", &self.dir(), &Sent { headers, body: Some(b"") })?;
        if answer.status != 207 {
            return Ok(None);
        }
        let text = answer.text(LIST_MAX)?;
        let damaged = |error| {
            let text = format!("{}: its list is damaged: {error}", self.name());
            PublishError::new(Cause::Damaged, text)
        };
        let document = Document::parse(&text).map_err(damaged)?;
        let places = document.descendants().filter(|node| node.has_tag_name(("DAV:", "href")));
        let names = places.filter_map(|place| {
            let url = self.dir().join(place.text()?.trim()).ok()?;
            let rest = url.path().strip_prefix(self.dir().path())?.trim_end_matches('/').to_owned();
            (!rest.is_empty()).then_some(rest)
        });
        Ok(Some(names.collect()))
    }
}

impl Shelf for Server<'_> {
    fn name(&self) -> String {
        crate::web::shown(&self.url)
    }

    fn put(&self, entry: &str, files: &[(&str, &[u8])]) -> PublishResult<()> {
        let mut made = self.web.ask("MKCOL", &self.at(entry), &Sent::default())?;
        match made.status {
            201 => {}
            405 if made.header("allow").is_none_or(|methods| methods.contains("MKCOL")) => {
                return Err(exists(&format!("{}/{entry}", self.name())));
            }
            // Servers that know no directories make them by PUT.
            405 | 501 => {}
            _ => return Err(made.refusal()),
        }
        let mut done = Vec::new();
        for (file, bytes) in files {
            let name = format!("{entry}/{file}");
            if let Err(error) = self.put_file(&name, bytes) {
                done.iter().for_each(|name: &String| drop(self.delete(name)));
                let _what_was_made = self.delete(entry);
                return Err(error);
            }
            done.push(name);
        }
        Ok(())
    }

    fn get(&self, entry: &str, file: &str, max: usize) -> PublishResult<String> {
        let mut answer = self.web.ask("GET", &self.at(&format!("{entry}/{file}")), &Sent::default())?;
        if answer.status == 200 { answer.text(max) } else { Err(answer.refusal()) }
    }

    fn list(&self) -> PublishResult<Vec<String>> {
        if let Some(names) = self.list_json()? {
            return Ok(names);
        }
        self.list_dav()?.ok_or_else(|| {
            let text = format!(
                "{}: lists no entries, neither as JSON nor by WebDAV; fetch them by their URLs",
                self.name()
            );
            PublishError::new(Cause::Other, text)
        })
    }

    fn remove(&self, entry: &str, files: &[&str]) -> PublishResult<()> {
        for (number, file) in files.iter().enumerate() {
            match self.delete(&format!("{entry}/{file}")) {
                Err(error) if error.cause() != Cause::NotFound || number == 0 => return Err(error),
                _ => {}
            }
        }
        // Where directories come and go by themselves there is none.
        let _a_directory_or_none = self.delete(entry);
        Ok(())
    }
}
