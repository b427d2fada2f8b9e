//! Measures a site: its storage by files in a directory of it, this node by files in memory.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bivouac_launch::{CAUGHT, Environment, LaunchError, Signals, available_memory};
use bivouac_plan::{CurvePoint, Node, Site, Storage};
use bivouac_survey::map_of_this_host;
use bivouac_sysmap::InterfaceKind;
use bivouac_types::{code_of_signal, format_signal};
use rustix::fs::{Advice, fadvise};

use crate::failure::Failure;
use crate::options::CalibrateArgs;
use crate::staging::interruptible;

/// Bytes of one call.
const CALL: usize = 1 << 20;
/// Of each point, so many measurements; the middle one counts.
const TIMES: usize = 3;
/// Directory of files in memory.
const MEMORY: &str = "/dev/shm";
/// Streams of one node.
const STREAMS: u32 = 4;

/// Measures, and says what was found.
///
/// # Errors
/// That the directory cannot be written; the signal that interrupted it, when nothing is left of it.
pub fn calibrate(here: &Environment, args: &CalibrateArgs) -> Result<Site, Failure> {
    let signals = Signals::catch(&CAUGHT).map_err(|e| LaunchError::system("signals", e))?;
    match interruptible(&signals, |cancel| measure(here, args, &cancel)) {
        (_, Some(signal)) => Err(Failure::new(
            code_of_signal(signal),
            format_args!("interrupted by {}", format_signal(signal)),
        )),
        (measured, None) => measured,
    }
}

fn measure(here: &Environment, args: &CalibrateArgs, cancel: &Arc<AtomicBool>) -> Result<Site, Failure> {
    let scratch = ScratchDir::in_dir(&args.dir, cancel)?;
    let mut spread = 0.0_f64;
    let (mut read, mut write) = (Vec::new(), Vec::new());
    let mut streams = 1;
    while streams <= args.streams {
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        for _ in 0..TIMES {
            let (written, again) = scratch.streams(streams, args.size)?;
            writes.push(written);
            reads.push(again);
        }
        for (rates, curve) in [(&mut reads, &mut read), (&mut writes, &mut write)] {
            assert_eq!(rates.len(), TIMES, "the middle of another number of measurements is taken");
            rates.sort_by(f64::total_cmp);
            let middle = rates.get(TIMES / 2).copied().unwrap_or(1.0);
            let ends = rates.last().copied().unwrap_or(middle) - rates.first().copied().unwrap_or(middle);
            spread = spread.max(ends / middle / 2.0);
            curve.push(CurvePoint { streams, bytes_per_second: middle });
        }
        streams *= 2;
    }
    let (file_write_ms, file_read_ms) = scratch.small_files(args.files)?;
    Ok(Site {
        // Three measurements in a row differ by less than two days do.
        storage: Storage { read, write, file_read_ms, file_write_ms, spread: spread.clamp(0.1, 1.0) },
        node: Node {
            bytes_per_second: of_this_node(here, args.size, cancel)?,
            memory_bytes: available_memory(here.batch.memory),
            streams: STREAMS,
            start_ms: 1000.0,
        },
    })
}

/// Measures how fast a node takes data: as its memory, but no faster than its network, if that is known.
fn of_this_node(here: &Environment, size: u64, cancel: &Arc<AtomicBool>) -> Result<f64, Failure> {
    let scratch = ScratchDir::in_dir(Path::new(MEMORY), cancel)?;
    let mut rates = Vec::new();
    for _ in 0..TIMES {
        let (write, read) = scratch.streams(1, size)?;
        rates.push(write.min(read));
    }
    rates.sort_by(f64::total_cmp);
    let memory = rates.get(TIMES / 2).copied().unwrap_or(1.0);
    let map = map_of_this_host(here, 0);
    let interfaces = map.hosts.iter().flat_map(|host| &host.interfaces);
    let real = interfaces.filter(|one| one.up != Some(false) && one.kind != Some(InterfaceKind::Loopback));
    let network = real.filter_map(|one| one.speed_bits).max().map(|bits| bits as f64 / 8.0);
    Ok(network.map_or(memory, |network| memory.min(network)))
}

/// A directory that is removed again.
struct ScratchDir {
    dir: PathBuf,
    /// Set once the user interrupts.
    cancel: Arc<AtomicBool>,
}

impl ScratchDir {
    fn in_dir(dir: &Path, cancel: &Arc<AtomicBool>) -> Result<ScratchDir, Failure> {
        let path = dir.join(format!(".bivouac-calibrate-{}", std::process::id()));
        let made = std::fs::create_dir(&path);
        made.map_err(|e| {
            Failure::new(1, format_args!("{}: {e}; name a directory that you may write", dir.display()))
        })?;
        Ok(ScratchDir { dir: path, cancel: Arc::clone(cancel) })
    }

    fn failed(&self, e: std::io::Error) -> Failure {
        Failure::new(1, format_args!("{}: {e}", self.dir.display()))
    }

    /// Returns the bytes per second of so many streams together: written and safe; and read, from where they are kept.
    fn streams(&self, streams: u32, size: u64) -> Result<(f64, f64), Failure> {
        let bytes = size as f64 * f64::from(streams);
        let written = self.together(streams, |path| self.write_file(path, size))?;
        let read = self.together(streams, |path| self.read_file(path))?;
        Ok((bytes / written, bytes / read))
    }

    /// Seconds until all streams are done, each with a file of its own.
    fn together(
        &self,
        streams: u32,
        work: impl Fn(&Path) -> std::io::Result<()> + Sync,
    ) -> Result<f64, Failure> {
        let begin = Instant::now();
        let results: Vec<std::io::Result<()>> = std::thread::scope(|scope| {
            let started: Vec<_> = (0..streams)
                .map(|stream| {
                    let path = self.dir.join(stream.to_string());
                    let work = &work;
                    scope.spawn(move || work(&path))
                })
                .collect();
            let ended = started.into_iter().map(|thread| thread.join());
            ended.map(|end| end.unwrap_or_else(|_| Err(std::io::Error::other("a stream panicked")))).collect()
        });
        let seconds = begin.elapsed().as_secs_f64().max(1e-9);
        results.into_iter().collect::<std::io::Result<()>>().map_err(|e| self.failed(e))?;
        Ok(seconds)
    }

    /// Returns the milliseconds of each small file, written and read.
    fn small_files(&self, count: u32) -> Result<(f64, f64), Failure> {
        let each = |work: &dyn Fn(&Path) -> std::io::Result<()>| -> Result<f64, Failure> {
            let begin = Instant::now();
            for number in 0..count {
                work(&self.dir.join(format!("f{number}"))).map_err(|e| self.failed(e))?;
            }
            Ok(begin.elapsed().as_secs_f64() * 1000.0 / f64::from(count.max(1)))
        };
        Ok((each(&|path| self.write_file(path, 1))?, each(&|path| self.read_file(path))?))
    }

    fn write_file(&self, path: &Path, size: u64) -> std::io::Result<()> {
        let block = vec![0x5a; CALL];
        let mut file = File::create(path)?;
        let mut left = size;
        while left > 0 {
            self.go_on()?;
            let part = left.min(CALL as u64);
            file.write_all(block.get(..usize::try_from(part).unwrap_or(CALL)).unwrap_or(&block))?;
            left -= part;
        }
        // Else memory is measured, and what a job writes has to be on disk when it ends.
        file.sync_all()
    }

    fn read_file(&self, path: &Path) -> std::io::Result<()> {
        let mut file = File::open(path)?;
        // What this machine remembers is no measure of where it is kept.
        let _as_well_as_it_can = fadvise(&file, 0, None, Advice::DontNeed);
        let mut block = vec![0; CALL];
        while file.read(&mut block)? > 0 {
            self.go_on()?;
        }
        Ok(())
    }

    fn go_on(&self) -> std::io::Result<()> {
        // Not `Interrupted`, after which calls are made again.
        if self.cancel.load(Ordering::Relaxed) { Err(std::io::Error::other("interrupted")) } else { Ok(()) }
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.dir) {
            errln!("bivouac: {}: {error}; remove it", self.dir.display());
        }
    }
}
