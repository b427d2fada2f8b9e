//! Rates of a formation between two looks at it: what nodes did, and what files, processes and jobs of staging were
//! busy.

mod activity;
mod history;
mod interval;
mod paths;
mod sampler;
mod series;
mod staging;
mod uses;

pub use activity::Activity;
pub use interval::{FULL, IntervalWork, NodeRates, OperationRates, Rates};
pub use sampler::RateSampler;
pub use series::RateSeries;
pub use staging::JobRates;
pub use uses::{FileRates, ProcessRates, UseRates};
