//! Destinations of checkpoints: a slow source itself, and a formation whose partition stands in front of it.

use std::path::{Path, PathBuf};

use super::FlashArgs;
use crate::formation::Formation;
use crate::scratch::Scratch;
use crate::slow::{Counts, SlowDir, Slowness};
use crate::{BenchError, BenchResult, Host};

/// Directory in which mounts are made.
const PLACE: &str = "/tmp";
/// The partition's directory.
const PARTITION: &str = "flash";

/// Directories of a measurement, with what serves them. Fields are dropped in the order of their declaration.
pub struct FlashDirs<'h, 'a> {
    formation: Formation<'h, 'a>,
    /// In the source: directories for who writes to it and for the partition.
    direct: PathBuf,
    front: PathBuf,
    // Behind the formation, whose daemons write there as long as they live.
    _in_source: Scratch,
    // Behind what is removed in it.
    slow: Option<SlowDir>,
    // Last: all else is mounted in it.
    _mounts: Scratch,
}

/// A directory to write to, as each mount shows it, and where the source has it.
pub struct Dirs {
    /// As the mounts show it: at least one.
    pub shown: Vec<PathBuf>,
    /// At the source.
    pub at_source: PathBuf,
    /// Removed in this order.
    _scratches: [Option<Scratch>; 2],
}

impl<'h, 'a> FlashDirs<'h, 'a> {
    /// Mounts the slow source unless there is one, starts a formation and makes its partition.
    ///
    /// # Errors
    /// Where this user may not mount; what the commands say.
    pub fn make(host: &'h Host<'a>, args: &FlashArgs) -> BenchResult<FlashDirs<'h, 'a>> {
        let place = Scratch::new(Path::new(PLACE))?;
        let slow = match &args.source {
            Some(_) => None,
            None => Some(SlowDir::at(host, slowness(args, place.subdir("source")?))?),
        };
        let given = args.source.as_deref().map(absolute).transpose()?;
        let source = given.as_deref().or(slow.as_ref().map(SlowDir::path)).unwrap_or(Path::new("."));
        let in_source = Scratch::new(source)?;
        let (direct, front) = (in_source.subdir("direct")?, in_source.subdir("front")?);
        let (each, nodes) = (place.subdir("mounts")?.display().to_string(), args.nodes.to_string());
        let formation = Formation::up(host, &["--nodes", &nodes, "--mount-each", &each])?;
        let places = FlashDirs { formation, direct, front, _in_source: in_source, slow, _mounts: place };
        places.make_partition(args)?;
        Ok(places)
    }

    fn make_partition(&self, args: &FlashArgs) -> BenchResult<()> {
        let (path, source) = (self.partition()?.display().to_string(), self.front.display().to_string());
        let stripe = args.stripe.to_string();
        let place = ["partition", "create", &path, "--source", &source];
        let how = ["--stripe", &stripe, "--write", &args.write, "--contract", &args.contract];
        self.formation.run(&[&place[..], &how].concat()).map(drop)
    }

    /// The partition, as the first mount shows it.
    fn partition(&self) -> BenchResult<PathBuf> {
        let mounts = self.formation.mounts();
        let first = mounts.first().ok_or_else(|| BenchError::refused("up --json", "names no mount"))?;
        Ok(first.join(PARTITION))
    }

    /// A new directory in the source.
    ///
    /// # Errors
    /// What the source refuses.
    pub fn direct(&self) -> BenchResult<Dirs> {
        let scratch = Scratch::new(&self.direct)?;
        let path = scratch.path().to_owned();
        Ok(Dirs { shown: vec![path.clone()], at_source: path, _scratches: [Some(scratch), None] })
    }

    /// A new directory in the partition.
    ///
    /// # Errors
    /// What the formation refuses.
    pub fn in_front(&self) -> BenchResult<Dirs> {
        let scratch = Scratch::new(&self.partition()?)?;
        let name = scratch.path().file_name().unwrap_or_default();
        // One directory for all mounts: each shows the same partition.
        let shown = self.formation.mounts().iter().map(|mount| mount.join(PARTITION).join(name)).collect();
        let at_source = self.front.join(name);
        // What is removed in the formation stays at the source.
        let below = Scratch::of(at_source.clone());
        Ok(Dirs { shown, at_source, _scratches: [Some(scratch), Some(below)] })
    }

    /// Has all that was written brought to the source.
    ///
    /// # Errors
    /// What `flush` says.
    pub fn flush(&self) -> BenchResult<()> {
        self.formation.run(&["flush", &self.partition()?.display().to_string()]).map(drop)
    }

    /// Requests to the source so far, if it counts them.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn counts(&self) -> BenchResult<Option<Counts>> {
        self.slow.as_ref().map(SlowDir::counts).transpose()
    }

    /// Takes everything down.
    ///
    /// # Errors
    /// What `down` says.
    pub fn end(self, host: &Host<'_>) -> BenchResult<()> {
        self.formation.down(host).map(drop)
    }
}

fn slowness(args: &FlashArgs, dir: PathBuf) -> Slowness {
    Slowness { dir, delay_ms: args.delay_ms, rate: args.rate, pays_for_reads: args.pay_for_reads }
}

/// The daemons know no directory that this program is in.
fn absolute(dir: &Path) -> BenchResult<PathBuf> {
    dir.canonicalize().map_err(|error| {
        BenchError::usage(format_args!("--source {}", dir.display()), error, "name a directory that exists")
    })
}
