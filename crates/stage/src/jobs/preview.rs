//! What a job would copy.

use std::fs;
use std::path::{Path, PathBuf};

use crate::scan::{Kind, below, scan};
use crate::{CopyOptions, Failure, Skipped, Totals, Transfer};

use super::{Jobs, Order, Way};

/// What one transfer would do.
#[derive(Debug)]
pub struct Preview {
    /// It.
    pub transfer: Transfer,
    /// What would be copied, below the source; empty for the source itself.
    pub paths: Vec<PathBuf>,
    /// Files, and their bytes.
    pub totals: Totals,
    /// What would not be copied, being of no kind that is.
    pub skipped: Vec<Skipped>,
    /// What could not be looked at.
    pub failures: Vec<Failure>,
}

impl Jobs {
    /// Looks through the sources of an order. Nothing is written, neither there nor among the jobs.
    ///
    /// # Errors
    /// When a source is not there, or a pattern makes no sense.
    pub fn preview(&self, order: &Order, mount: &Path) -> Result<Vec<Preview>, Failure> {
        let wrong = |text: String| {
            let error = std::io::Error::new(std::io::ErrorKind::InvalidInput, text);
            Failure::io("understand the patterns", mount, error)
        };
        let opts = CopyOptions { select: order.select().map_err(wrong)?, ..CopyOptions::default() };
        let one = |transfer: &Transfer| {
            let src = match order.way {
                Way::In => transfer.src.clone(),
                Way::Out => below(mount, &transfer.src),
            };
            let root = fs::canonicalize(&src).map_err(|error| Failure::io("look at it", &src, error))?;
            let baseline = self.baseline_for(order.changed, transfer);
            let plan = scan(root, &opts, baseline.as_ref());
            let objects = plan.entries.iter().filter(|entry| entry.kind != Kind::Dir);
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
