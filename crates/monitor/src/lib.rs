//! Monitoring of a running formation, for people and programs: its status, rates of what it does, and reports of what
//! it was used for. Nodes and hosts are asked, nothing is changed.
//!
//! Layers, from the lowest; a module uses those of the lines above it:
//! - [`connect`]: a client of a formation; [`job_json`]
//! - questions to hosts ([`Hosts`]), partitions with their use ([`PartitionReport`])
//! - jobs of staging on all hosts ([`StageMonitor`]); [`status`]
//! - [`report`], metrics ([`render_metrics`]); then [`rates`]

mod connection;
mod host_questions;
mod metrics;
mod partitions;
pub mod rates;
pub mod report;
mod stage_jobs;
mod stage_json;
pub mod status;

pub use connection::connect;
pub use host_questions::{Host, Hosts, answer_question};
pub use metrics::{MetricsFormat, render_metrics};
pub use partitions::{PartitionReport, list_partitions, partition_nodes, partition_table};
pub use stage_jobs::{StageJobs, StageMonitor};
pub use stage_json::job_json;
