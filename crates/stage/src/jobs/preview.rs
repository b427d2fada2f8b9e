//! Dry run of a job.

use std::fs;
use std::path::{Path, PathBuf};

use crate::args::Transfer;
use crate::error::Failure;
use crate::options::CopyOptions;
use crate::paths::below;
use crate::scan::{ObjectKind, scan};
use crate::summary::{Skipped, Totals};

use super::{Direction, JobSpec, Jobs};

/// Objects that a transfer would copy.
#[derive(Debug)]
pub struct Preview {
    /// The transfer.
    pub transfer: Transfer,
    /// Paths below the source; empty for the source itself.
    pub paths: Vec<PathBuf>,
    /// Files and bytes.
    pub totals: Totals,
    /// Objects of unsupported types.
    pub skipped: Vec<Skipped>,
    /// Objects that could not be examined.
    pub failures: Vec<Failure>,
}

impl Jobs {
    /// Scans the sources of a specification. Writes nothing.
    ///
    /// # Errors
    /// A missing source, or a malformed pattern.
    pub fn preview(&self, order: &JobSpec, mount: &Path) -> Result<Vec<Preview>, Failure> {
        let wrong = |text: String| {
            let error = std::io::Error::new(std::io::ErrorKind::InvalidInput, text);
            Failure::io("understand the patterns", mount, error)
        };
        let one = |transfer: &Transfer| {
            let opts =
                CopyOptions { select: order.select(transfer).map_err(wrong)?, ..CopyOptions::default() };
            let src = match order.way {
                Direction::In => transfer.src.clone(),
                Direction::Out => below(mount, &transfer.src),
            };
            // Read-only, so a link out of the formation may be followed here.
            let root = fs::canonicalize(&src).map_err(|error| Failure::io("look at it", &src, error))?;
            let baseline = self.baseline_for(order.changed, transfer);
            let plan = scan(root, &opts, baseline.as_ref());
            let objects = plan.entries.iter().filter(|entry| entry.kind != ObjectKind::Dir);
            let paths = objects.map(|entry| entry.path.clone()).collect();
            let transfer = transfer.clone();
            Ok(Preview {
                transfer,
                paths,
                totals: plan.totals,
                skipped: plan.skipped,
                failures: plan.failures,
            })
        };
        order.transfers.iter().map(one).collect()
    }
}
