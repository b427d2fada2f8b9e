//! Links to other formations that are open.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, UNIX_EPOCH};

use bivouac_link::{LinkKey, LinkSource, LinkTarget, asker_of};
use bivouac_ranks::Mutex;
use bivouac_source::Cause;
use bivouac_types::{Errno, FormationId, FsError, FsResult, NodeId};
use bivouac_wire::LinkStatus;

/// Longest wait of work for a link that is down.
const LINK_WAIT: Duration = Duration::from_secs(30);

/// Credentials for links to other formations, and the links that are open.
pub struct LinkAccess {
    formation: FormationId,
    node: NodeId,
    secret: [u8; 32],
    owner: (u32, u32),
    /// By address and key. One that is down stays: it is known how long it has been so.
    open: Mutex<HashMap<(String, String), OpenLink>>,
}

/// A link that is open.
struct OpenLink {
    name: String,
    source: LinkSource,
}

impl LinkAccess {
    /// Creates the access of a node of a formation with this secret, for processes of this user and group.
    pub fn new(formation: FormationId, node: NodeId, secret: [u8; 32], owner: (u32, u32)) -> LinkAccess {
        LinkAccess { formation, node, secret, owner, open: Mutex::default() }
    }

    /// Returns the links that are open, as this node has seen them.
    pub fn statuses(&self) -> Vec<LinkStatus> {
        let status = |((address, _), link): (&(String, String), &OpenLink)| {
            let figures = link.source.figures();
            let (error_unix_ms, last_error) = figures.last_error.map_or((0, String::new()), |(at, error)| {
                let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
                (u64::try_from(since.as_millis()).unwrap_or(u64::MAX), error)
            });
            LinkStatus {
                name: link.name.clone(),
                address: address.clone(),
                is_up: figures.is_up,
                round_trip_us: u64::try_from(figures.round_trip.as_micros()).unwrap_or(u64::MAX),
                rate: figures.rate,
                breaks: figures.breaks,
                error_unix_ms,
                last_error,
            }
        };
        self.open.lock().iter().map(status).collect()
    }

    /// Opens a link whose key was sealed for this formation.
    ///
    /// # Errors
    /// The gateway does not permit it, or does not answer.
    pub fn open(&self, address: &str, name: &str, key: &str) -> FsResult<LinkSource> {
        let id = (address.to_owned(), key.to_owned());
        let known = self.open.lock().get(&id).map(|link| link.source.clone());
        let link = match known {
            Some(link) => link,
            None => {
                let link = OpenLink { name: name.to_owned(), source: self.connect(address, name, key)? };
                // Somebody else may have opened it meanwhile: all use the same connections.
                self.open.lock().entry(id).or_insert(link).source.clone()
            }
        };
        link.far_side()?;
        // Those who link each other at the same moment see it here at the latest.
        match link.reaches(vec![self.formation]) {
            Err(error) if error.cause() == Cause::Exists => Err(error.into()),
            _ => Ok(link),
        }
    }

    /// Closes all links but these, by address and sealed key, once their requests under way have ended.
    pub fn close_others(&self, used: &HashSet<(String, String)>) {
        self.open.lock().retain(|id, _| used.contains(id));
    }

    fn connect(&self, address: &str, name: &str, key: &str) -> FsResult<LinkSource> {
        let text = || format!("the key of link '{name}' is of another formation: add the link again");
        // Of two links with one key each has its own connections.
        let asker = Some(asker_of(self.node, key));
        let key = LinkKey::open(&self.secret, key).ok_or_else(|| FsError::with(Errno::EACCES, text()))?;
        let (address, formation, owner, wait) = (address.to_owned(), self.formation, self.owner, LINK_WAIT);
        Ok(LinkSource::later(LinkTarget { address, key, formation, owner, asker, wait })?)
    }
}
