//! Jobs of staging, of all hosts of a formation.

use std::sync::{Arc, Mutex, PoisonError};

use bivouac_launch::{State, StateDir};
use serde_json::Value;

use crate::commands::stage::jobs_json;
use crate::failure::Failure;
use crate::host_notes::{Hosts, on_host};

/// Asks again and again, by the same connections.
pub struct Stages {
    /// The whole of a formation, or this host's part.
    dir: StateDir,
    /// The others, once somebody has asked.
    others: Mutex<Option<Arc<Hosts>>>,
}

/// Jobs, and hosts that do not answer, with why.
pub type Found = (Vec<Value>, Vec<(String, String)>);

impl Stages {
    /// Of a formation.
    pub fn new(dir: StateDir) -> Stages {
        Stages { dir, others: Mutex::default() }
    }

    /// All of them as JSON: of a formation over several hosts each job has its host, and a host that does not answer
    /// says why.
    ///
    /// # Errors
    /// When state, secret or map cannot be read.
    pub fn list(&self) -> Result<Value, Failure> {
        let (jobs, silent) = self.find()?;
        let silent = silent.into_iter().map(|(host, why)| serde_json::json!({"host": host, "silent": why}));
        Ok(jobs.into_iter().chain(silent).collect())
    }

    /// The same, told apart.
    ///
    /// # Errors
    /// As [`Stages::list`].
    pub fn find(&self) -> Result<Found, Failure> {
        let mut own = jobs_json(&self.dir).as_array().cloned().unwrap_or_default();
        let Some(state) = self.dir.read()? else { return Ok((own, Vec::new())) };
        let Some(others) = self.others(&state)? else { return Ok((own, Vec::new())) };
        if state.part.is_some() {
            let host = state.nodes.first().map_or("", |node| node.host.as_str());
            own = own.into_iter().map(|job| on_host(job, host)).collect();
        }
        let (jobs, silent) = others.stages();
        own.extend(jobs);
        Ok((own, silent))
    }

    fn others(&self, state: &State) -> Result<Option<Arc<Hosts>>, Failure> {
        let mut known = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        if known.is_none() {
            // The whole of a formation has jobs beside those of its hosts, among which a part's own are.
            let own: Vec<u16> = match state.part {
                Some(_) => state.nodes.iter().map(|node| node.id).collect(),
                None => Vec::new(),
            };
            *known = Hosts::of(&self.dir, state, &own)?.map(Arc::new);
        }
        Ok(known.clone())
    }
}
