//! Maps of the machines of a job: gathered from this machine, from others by way of a launcher, or from files, and
//! measured between them.

mod gathering;
mod measuring;

pub use gathering::{
    HostQuery, LocalQuery, gather_hosts, gather_local, map_of_this_host, near_to, read_map, read_maps,
};
pub use measuring::{MeasureQuery, OpenStation, StationAnswer, measure, open_station};
