//! `bivouac gateway`: serves directories of a formation to formations that link to it; the supervisor starts it.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bivouac_client::Member;
use bivouac_http::keys::{self, CachedKeys};
use bivouac_launch::handover::FromNode;
use bivouac_launch::{Environment, HttpHandover, LaunchError, StateDir, raise_descriptor_limit};
use bivouac_link::{
    ConnectionLimits, Gateway, GatewayOptions, Grant, KeyTable, LinkKey, LinkTarget, MountPlace, OutgoingLink,
};
use bivouac_source::{Cause, SourceError, SourceResult};
use bivouac_types::{FormationId, FsError, NodeId, Site};
use parking_lot::Mutex;

use super::serve::followed;
use crate::failure::Failure;
use crate::logging;

/// Time for which the list of the formation's links is cached.
const LINKS_KNOWN: Duration = Duration::from_secs(1);
/// Longest wait for the answer of another gateway.
const ASK_WAIT: Duration = Duration::from_secs(10);

/// Serves until the supervisor is gone, or ends it.
pub fn run(here: &Environment, dir: PathBuf) -> Result<ExitCode, Failure> {
    let dir = StateDir::at(dir);
    logging::raise_at(here, "gateway", &dir);
    let (handover, listener, _) = HttpHandover::from_stdin()?;
    raise_descriptor_limit();
    let gateway = open(here, &dir).inspect_err(|failure| {
        // It will see the end of this process in any case.
        let _or_gone = handover.tell(&FromNode::Failed { message: failure.to_string() });
    })?;
    let (gateway, member) = gateway;
    let watch = followed(Some(member.client()?), handover);
    let watching = std::thread::Builder::new().name("supervised".to_owned()).spawn(watch);
    watching.map_err(|error| LaunchError::system("a thread that waits for the supervisor", error))?;
    gateway.serve(&listener);
    Ok(ExitCode::SUCCESS)
}

fn open(here: &Environment, dir: &StateDir) -> Result<(Arc<Gateway>, Arc<Member>), Failure> {
    let state = dir.read_living()?;
    let formation = state.formation_id().ok_or_else(|| Failure::new(1, "the formation's id is damaged"))?;
    let member = Arc::new(Member::join(dir.path(), Duration::from_millis(state.wait_ms))?);
    // Lost before this process began: the supervisor tells of those that are lost from now on.
    if let Some(liveness) = member.client()?.liveness() {
        state.lost().for_each(|node| liveness.set_dead(NodeId(node), true));
    }
    let owner = (here.uid, rustix::process::getegid().as_raw());
    let keys = FormationKeys {
        member: Arc::clone(&member),
        dir: dir.clone(),
        secret: dir.secret()?,
        formation,
        owner,
        cached: CachedKeys::default(),
        links: Mutex::default(),
    };
    let name = state.name.to_string();
    let limits = ConnectionLimits::default();
    Ok((Gateway::new(GatewayOptions { formation, name, owner, keys: Arc::new(keys), limits }), member))
}

/// Keys and links of a formation.
struct FormationKeys {
    member: Arc<Member>,
    dir: StateDir,
    secret: [u8; 32],
    formation: FormationId,
    owner: (u32, u32),
    cached: CachedKeys,
    links: Mutex<Option<(Instant, Vec<OutgoingLink>)>>,
}

impl FormationKeys {
    fn find_links(&self) -> Result<Vec<OutgoingLink>, FsError> {
        let client = self.member.client()?;
        let mut links = Vec::new();
        for partition in client.partitions.list()? {
            let Some(source) = partition.settings.source.as_ref().filter(|source| !source.is_detached())
            else {
                continue;
            };
            let Site::Formation { address, key, .. } = source.site() else { continue };
            let (Some(key), Some(path)) =
                (LinkKey::open(&self.secret, key), client.path_of_dir(partition.dir)?)
            else {
                continue;
            };
            let (address, formation, owner) = (address.clone(), self.formation, self.owner);
            links.push(OutgoingLink {
                path: path.trim_start_matches('/').as_bytes().to_vec(),
                target: LinkTarget { address, key, formation, owner, asker: None, wait: ASK_WAIT },
            });
        }
        Ok(links)
    }
}

fn asked(error: &FsError) -> SourceError {
    SourceError::new(Cause::Lost, format!("the formation does not answer its gateway: {error}"))
}

impl KeyTable for FormationKeys {
    fn key(&self, id: &str) -> LinkKey {
        LinkKey::derive(&self.secret, id)
    }

    fn grant(&self, id: &str) -> SourceResult<Option<Grant>> {
        // Also of one that has expired, which is said by name.
        let key = match self.cached.cached(id, 0) {
            Some(key) => Some(key),
            None => {
                let client = self.member.client().map_err(|error| asked(&error))?;
                self.cached.find(client, id, 0).map_err(|error| asked(&error))?
            }
        };
        Ok(key.filter(|key| key.link).map(|key| Grant {
            path: key.path.trim_matches('/').as_bytes().to_vec(),
            read_only: key.read_only,
            expires: key.expires,
        }))
    }

    fn links(&self) -> Vec<OutgoingLink> {
        if let Some((at, links)) = &*self.links.lock()
            && at.elapsed() < LINKS_KNOWN
        {
            return links.clone();
        }
        // Without the lock: other requests do not wait for nodes that are slow to answer.
        match self.find_links() {
            Ok(links) => {
                *self.links.lock() = Some((Instant::now(), links.clone()));
                links
            }
            Err(error) => {
                // Not cached, so that the next question asks again.
                log::warn!(why:% = error; "the formation's own links are not known");
                Vec::new()
            }
        }
    }

    fn now(&self) -> u64 {
        keys::now()
    }

    fn mount(&self) -> SourceResult<MountPlace> {
        let not_there = |why: String| SourceError::new(Cause::Lost, why);
        let state = self.dir.read_living().map_err(|error| not_there(error.to_string()))?;
        let mount = state.mounts.into_iter().find(|mount| mount.trouble.is_none());
        mount.map(|mount| MountPlace { dir: mount.dir, device: mount.connection }).ok_or_else(|| {
            not_there(
                "the formation is not mounted at the gateway's host; there: bivouac mount DIR".to_owned(),
            )
        })
    }
}
