//! Worth of a formation: what a job takes with one and without, from a model of the site.
//!
//! - [`Site`] is what is known of a site: how fast its storage is over how many streams, what each file costs, what a
//!   node can do.
//! - [`JobWork`] is what a job will do. [`predict`] says how long its input and output take, with how much doubt, and
//!   the verdict.
//! - [`FormerRun`] is what a run did before, from which [`JobWork`] is derived.
//! - [`LearnedRatios`] is what outcomes taught: by how much predictions of this site are off.
//! - [`break_even`] and [`nodes_for`] are the formulas of the publications.
//!
//! No I/O, no clock.

mod advice;
mod earlier;
mod formulas;
mod learned;
mod predict;
mod site;

pub use advice::{Advice, PartitionAdvice, formation_file};
pub use earlier::{Bursts, FormerRun, UsedFile, UsedProcess, middle};
pub use formulas::{break_even, nodes_for};
pub use learned::{FACTOR_MAX, KEPT_MAX, LearnedRatios, LearnedStep};
pub use predict::{JobWork, Prediction, Seconds, Verdict, predict, staging};
pub use site::{CurvePoint, Node, Site, Storage};
