//! Model of a site.

use serde::{Deserialize, Serialize};

/// A site, as it is written down in TOML.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Site {
    /// Its storage.
    pub storage: Storage,
    /// One of its nodes.
    pub node: Node,
}

/// Storage of a site.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Storage {
    /// Speed of reads.
    pub read: Vec<CurvePoint>,
    /// Speed of writes.
    pub write: Vec<CurvePoint>,
    /// Cost of each file that is read besides its bytes, in milliseconds of one stream.
    pub file_read_ms: f64,
    /// Cost of each file that is written besides its bytes, in milliseconds of one stream.
    pub file_write_ms: f64,
    /// By how much of their mean measurements differed, 0 to 1.
    #[serde(default = "spread")]
    pub spread: f64,
}

/// A point of a curve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CurvePoint {
    /// Streams at the same time.
    pub streams: u32,
    /// Bytes per second of all of them together.
    pub bytes_per_second: f64,
}

/// A node.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Bytes per second that it takes or gives as a part of a formation.
    pub bytes_per_second: f64,
    /// Memory that formation and application have together.
    pub memory_bytes: u64,
    /// Streams that it copies with.
    #[serde(default = "streams")]
    pub streams: u32,
    /// Time that a formation takes to start, in milliseconds.
    #[serde(default = "start_ms")]
    pub start_ms: f64,
}

fn spread() -> f64 {
    0.3
}

fn streams() -> u32 {
    4
}

fn start_ms() -> f64 {
    1000.0
}

impl Site {
    /// Contradictions in it.
    ///
    /// # Errors
    /// The field, and what it must be.
    pub fn check(&self) -> Result<(), String> {
        let Storage { read, write, file_read_ms, file_write_ms, spread } = &self.storage;
        for (name, curve) in [("storage.read", read), ("storage.write", write)] {
            if curve.is_empty()
                || curve.iter().any(|point| point.streams == 0 || !is_rate(point.bytes_per_second))
            {
                return Err(format!("{name}: needs points with streams and bytes_per_second above 0"));
            }
            if !curve.windows(2).all(|pair| matches!(pair, [a, b] if a.streams < b.streams)) {
                return Err(format!("{name}: its points go from few streams to many"));
            }
        }
        for (name, value) in [
            ("storage.file_read_ms", *file_read_ms),
            ("storage.file_write_ms", *file_write_ms),
            ("node.start_ms", self.node.start_ms),
        ] {
            // A range instead of two comparisons refuses NaN, which TOML can express.
            if !(0.0..1e9).contains(&value) {
                return Err(format!("{name}: is a time in milliseconds, not {value}"));
            }
        }
        if !(0.0..=1.0).contains(spread) {
            return Err(format!("storage.spread: is between 0 and 1, not {spread}"));
        }
        if !is_rate(self.node.bytes_per_second) || self.node.streams == 0 {
            return Err("node: bytes_per_second and streams are above 0".into());
        }
        Ok(())
    }
}

impl Storage {
    /// Returns the rate of so many streams on a curve: between two points as on a line, outside of them as at the
    /// nearest one.
    #[must_use]
    pub fn rate(curve: &[CurvePoint], streams: u32) -> f64 {
        let after = curve.iter().position(|point| point.streams >= streams);
        let (low, high) = match after {
            None => return curve.last().map_or(0.0, |point| point.bytes_per_second),
            Some(0) => return curve.first().map_or(0.0, |point| point.bytes_per_second),
            Some(at) => match (curve.get(at - 1), curve.get(at)) {
                (Some(low), Some(high)) => (low, high),
                _ => return 0.0,
            },
        };
        assert!(low.streams < streams, "{streams} streams are not behind a point of {}", low.streams);
        let part = f64::from(streams - low.streams) / f64::from(high.streams - low.streams);
        low.bytes_per_second + part * (high.bytes_per_second - low.bytes_per_second)
    }
}

fn is_rate(rate: f64) -> bool {
    // The bound refuses infinity, which TOML can express.
    rate > 0.0 && rate < 1e18
}
