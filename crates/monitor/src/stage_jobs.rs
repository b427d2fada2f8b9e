//! Jobs of staging, of all hosts of a formation.

use std::sync::{Arc, Mutex, PoisonError};

use bivouac_client::Client;
use bivouac_launch::{FormationState, LaunchResult, StateDir};
use serde_json::{Value, json};

use crate::host_questions::{Hosts, on_host};
use crate::stage_json::jobs_json;

/// Jobs, each as [`job_json`](crate::job_json), and hosts that do not answer, with the reason.
pub type StageJobs = (Vec<Value>, Vec<(String, String)>);

/// Lists the jobs of all hosts, again and again by the same connections.
pub struct StageMonitor {
    /// The whole of a formation, or this host's part.
    dir: StateDir,
    /// Way in which hosts are reached by who has no client, once somebody has asked.
    client: Mutex<Option<Arc<Client>>>,
}

impl StageMonitor {
    /// Creates the monitor of a formation's jobs.
    pub fn new(dir: StateDir) -> StageMonitor {
        StageMonitor { dir, client: Mutex::default() }
    }

    /// Returns all of them as JSON: of a formation over several hosts each job has its host, and a host that does not
    /// answer says why.
    ///
    /// # Errors
    /// When state, secret or map cannot be read.
    pub fn list(&self) -> LaunchResult<Value> {
        let (jobs, silent) = self.find_by(|hosts, state| Ok(hosts.stages(&*self.client(state)?)))?;
        let silent = silent.into_iter().map(|(host, why)| json!({"host": host, "silent": why}));
        Ok(jobs.into_iter().chain(silent).collect())
    }

    /// Like [`StageMonitor::list`], told apart, by who has a client.
    ///
    /// # Errors
    /// When the state cannot be read.
    pub fn find(&self, client: &Client) -> LaunchResult<StageJobs> {
        self.find_by(|hosts, _| Ok(hosts.stages(client)))
    }

    fn find_by(
        &self,
        ask: impl FnOnce(&Hosts, &FormationState) -> LaunchResult<StageJobs>,
    ) -> LaunchResult<StageJobs> {
        let mut own = jobs_json(&self.dir).as_array().cloned().unwrap_or_default();
        let Some(state) = self.dir.read()? else { return Ok((own, Vec::new())) };
        // The whole of a formation has jobs beside those of its hosts, among which a part's own are.
        let nodes: Vec<u16> = match state.part {
            Some(_) => state.nodes.iter().map(|node| node.id).collect(),
            None => Vec::new(),
        };
        let Some(others) = Hosts::of(&self.dir, &state, &nodes) else { return Ok((own, Vec::new())) };
        if state.part.is_some() {
            let host = state.nodes.first().map_or("", |node| node.host.as_str());
            own = own.into_iter().map(|job| on_host(job, host)).collect();
        }
        let (jobs, silent) = ask(&others, &state)?;
        own.extend(jobs);
        Ok((own, silent))
    }

    fn client(&self, state: &FormationState) -> LaunchResult<Arc<Client>> {
        // Under the lock: of several that ask first at once, one connects.
        let mut known = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = &*known {
            return Ok(Arc::clone(client));
        }
        Ok(Arc::clone(known.insert(Arc::new(Hosts::client(&self.dir, state)?))))
    }
}
