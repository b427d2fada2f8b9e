//! A directory of a web server that takes PUT.

use roxmltree::Document;
use serde_json::Value;
use url::Url;

use super::{CatalogueStore, exists};
use crate::error::{Cause, PublishError, PublishResult};
use crate::place::Location;
use crate::web::{RequestOptions, Web};

/// Largest list of a server, in bytes.
const LIST_MAX: usize = 64 << 20;

/// The directory.
pub struct Server<'w> {
    /// Its URL.
    pub url: Url,
    /// The way there.
    pub web: &'w Web,
}

impl Server<'_> {
    fn at(&self, name: &str) -> Url {
        match Location::Web(self.url.clone()).join(name) {
            Location::Web(url) => url,
            _ => self.url.clone(),
        }
    }

    /// Returns a directory's own URL.
    fn dir(&self) -> Url {
        let mut url = self.url.clone();
        if !url.path().ends_with('/') {
            url.set_path(&format!("{}/", url.path()));
        }
        url
    }

    fn put_file(&self, name: &str, bytes: &[u8]) -> PublishResult<()> {
        let headers = vec![("if-none-match", "*".to_owned())];
        let mut answer = self.web.ask(
            "PUT",
            &self.at(name),
            &RequestOptions { headers, body: Some(bytes), ..RequestOptions::default() },
        )?;
        if (200..300).contains(&answer.status) { Ok(()) } else { Err(answer.refusal()) }
    }

    fn delete(&self, name: &str) -> PublishResult<()> {
        let mut answer = self.web.ask("DELETE", &self.at(name), &RequestOptions::default())?;
        if (200..300).contains(&answer.status) { Ok(()) } else { Err(answer.refusal()) }
    }

    /// Removes the directory of an entry, if others have put nothing into it: by WebDAV that would go with it. Where
    /// directories come and go by themselves there is none.
    fn delete_if_empty(&self, entry: &str) {
        let dir = Server { url: self.at(entry), web: self.web };
        if dir.list().is_ok_and(|names| names.is_empty()) {
            let _gone_or_refused = self.delete(entry);
        }
    }

    /// Returns the list that servers make for programs: formations, and nginx with its format json.
    fn list_json(&self) -> PublishResult<Option<Vec<String>>> {
        let headers = vec![("accept", "application/json".to_owned())];
        let mut answer =
            self.web.ask("GET", &self.dir(), &RequestOptions { headers, ..RequestOptions::default() })?;
        if answer.status != 200 {
            return Err(answer.refusal());
        }
        // Answered as a page for people: the same directory may still have a list by WebDAV.
        if !answer.header("content-type").is_some_and(|kind| kind.starts_with("application/json")) {
            return Ok(None);
        }
        let list: Value = serde_json::from_str(&answer.text(LIST_MAX)?).unwrap_or_default();
        let names = list.as_array().map(|all| all.iter().filter_map(|entry| entry.get("name")?.as_str()));
        Ok(names.map(|names| names.map(|name| name.trim_end_matches('/').to_owned()).collect()))
    }

    /// Returns the list of WebDAV (RFC 4918, 9.1).
    fn list_dav(&self) -> PublishResult<Option<Vec<String>>> {
        let headers = vec![("depth", "1".to_owned())];
        let mut answer = self.web.ask(
            "PROPFIND",
            &self.dir(),
            &RequestOptions { headers, body: Some(b""), ..RequestOptions::default() },
        )?;
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

impl CatalogueStore for Server<'_> {
    fn name(&self) -> String {
        crate::web::shown(&self.url)
    }

    fn put(&self, entry: &str, files: &[(&str, &[u8])]) -> PublishResult<()> {
        let mut made = self.web.ask("MKCOL", &self.at(entry), &RequestOptions::default())?;
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
                // The answer may be lost, and not the file: removing the others would leave an entry without them.
                let has_come = error.cause() != Cause::Exists;
                let is_there = || self.get(entry, file, bytes.len()).map(|found| found.as_bytes() == *bytes);
                match has_come.then(is_there) {
                    Some(Ok(true)) => {
                        done.push(name);
                        continue;
                    }
                    Some(Err(unknown)) if unknown.cause() != Cause::NotFound => return Err(error),
                    _ => {}
                }
                done.iter().for_each(|name: &String| drop(self.delete(name)));
                self.delete_if_empty(entry);
                return Err(error);
            }
            done.push(name);
        }
        Ok(())
    }

    fn get(&self, entry: &str, file: &str, max: usize) -> PublishResult<String> {
        let mut answer =
            self.web.ask("GET", &self.at(&format!("{entry}/{file}")), &RequestOptions::default())?;
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
        self.delete_if_empty(entry);
        Ok(())
    }
}
