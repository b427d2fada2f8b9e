//! Maps of machines as text and in other languages than JSON.

mod forms;
mod measured_text;
mod tables;

pub use forms::{to_xml, to_yaml};
pub use tables::{changes, speed, text};
