//! Whether a formation is worth it: what a job takes with one and without, from a model of the site.
//!
//! - [`Site`] is what is known of a site: how fast its storage is over how many streams, what each file costs, what a node can do.
//! - [`Work`] is what a job will do. [`predict`] says how long its input and output take, with how much doubt, and the verdict.
//! - [`Earlier`] is what a run did before, from which [`Work`] is derived.
//! - [`Learned`] is what outcomes taught: by how much predictions of this site are off.
//! - [`break_even`] and [`nodes_for`] are the formulas of the publications.
//!
//! No I/O, no clock.

mod advice;
mod earlier;
mod formulas;
mod learned;
mod predict;
mod site;

pub use advice::{Advice, Part, formation_file};
pub use earlier::{Bursts, Earlier, UsedFile, UsedProcess, middle};
pub use formulas::{break_even, nodes_for};
pub use learned::{FACTOR_MAX, KEPT_MAX, Learned, Step};
pub use predict::{Prediction, Seconds, Verdict, Work, predict, staging};
pub use site::{Node, Point, Site, Storage};
