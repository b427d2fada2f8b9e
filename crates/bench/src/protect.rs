//! Cost of mirrored volumes: a formation with `--protect replicas=2` beside the same one without.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::formation::Formation;
use crate::measure::{alternate, check_reps, in_range};
use crate::output::{OutputArgs, show};
use crate::pattern::Pattern;
use crate::report::{Figure, Report, Unit};
use crate::scratch::{MEMORY_DIR, Scratch, check_room};
use crate::timed_part::{TimedPart, rates};
use crate::{BenchError, BenchResult, Host, clock};

/// Greatest number of nodes: each is a process.
const NODES_MAX: u64 = 64;
/// Bytes of one call.
const BLOCK: u64 = 1 << 20;
/// The operation by which a node changes replicas.
const CHANGES: &str = "ApplyChanges";

/// Measure what `--protect replicas=2` costs, beside the same formation without; both are started for it
#[derive(Args, Clone, Debug)]
pub struct ProtectArgs {
    /// Nodes of each formation, mounted through each
    #[arg(long, default_value_t = 2, value_name = "N")]
    pub nodes: u16,
    /// Files that each process makes, renames and removes
    #[arg(long, default_value_t = 1000, value_name = "N")]
    pub files: u32,
    /// Megabytes that each process writes
    #[arg(long, default_value_t = 64, value_name = "MB")]
    pub mb: u32,
    /// Threads that write together
    #[arg(long, default_value_t = 4, value_name = "N")]
    pub writers: u32,
    /// Repetitions
    #[arg(long, default_value_t = 5, value_name = "N")]
    pub reps: u32,
    /// Where the figures go
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Runs `bench protect`.
///
/// # Errors
/// Arguments that make no sense; what `up` and `down` say; a call that fails.
pub fn run(host: &Host<'_>, args: &ProtectArgs) -> BenchResult<()> {
    check_reps(args.reps)?;
    in_range("--nodes", u64::from(args.nodes), 2, NODES_MAX)?;
    in_range("--writers", u64::from(args.writers), 1, NODES_MAX)?;
    let memory = Path::new(MEMORY_DIR);
    // Of the larger formation: each byte twice, of private files and of a shared one.
    check_room(memory, u64::from(args.writers) * u64::from(args.mb) * (4 << 20))?;
    let scratch = Scratch::new(memory)?;
    let nodes = args.nodes.to_string();
    let up = |name: &str, protect: &str| {
        let each = scratch.subdir(name)?.display().to_string();
        Formation::up(host, &["--nodes", &nodes, "--mount-each", &each, "--protect", protect])
    };
    let formations = [up("mirrored", "replicas=2")?, up("plain", "none")?];
    let names = ["replicas=2", "none"].map(str::to_owned);
    let rows = alternate(host, &names, args.reps, |index| match formations.get(index) {
        Some(formation) => once(formation, args),
        None => Ok(Vec::new()),
    })?;
    for formation in formations {
        formation.down(host)?;
    }
    let title = format!(
        "{nodes} nodes on this machine, {} files, {} times {} MiB, {} repetitions",
        args.files, args.writers, args.mb, args.reps
    );
    let notes = vec![
        "both daemons of a change are on this machine: what costs processors and memory is there twice"
            .into(),
        "messages to backups are those of all nodes".into(),
    ];
    show(host, &Report { title, notes, rows }, &args.output)
}

/// Everything once, in directories of its own.
fn once(formation: &Formation<'_, '_>, args: &ProtectArgs) -> BenchResult<Vec<Figure>> {
    let mounts = formation.mounts();
    let Some(first) = mounts.first() else { return Err(BenchError::refused("up --json", "names no mount")) };
    let dir = first.join("measured");
    fs::create_dir(&dir).map_err(failed(&dir))?;
    let mut figures = Vec::new();
    let mut threads = vec![1, args.writers];
    // The same number twice would be one row with two figures of each repetition.
    threads.dedup();
    for writers in threads {
        figures.extend(names(formation, &dir, (writers, args.files))?);
    }
    let dirs: Vec<PathBuf> = mounts.iter().map(|mount| mount.join("measured")).collect();
    for (what, is_shared) in [("private files", false), ("shared file", true)] {
        let file = |writer: u32| {
            let name = if is_shared { "shared".to_owned() } else { format!("private-{writer}") };
            dirs[writer as usize % dirs.len()].join(name)
        };
        (0..args.writers).try_for_each(|writer| {
            let path = file(writer);
            OpenOptions::new().create(true).append(true).open(&path).map(drop).map_err(failed(&path))
        })?;
        let len = u64::from(args.mb) << 20;
        let at = |writer: u32| if is_shared { u64::from(writer) * len } else { 0 };
        let write = together(args.writers, |writer| write(&file(writer), at(writer), len));
        let read = together(args.writers, |writer| {
            read(&file((writer + 1) % args.writers), at((writer + 1) % args.writers), len)
        });
        figures.push(rate(&format!("write {what}"), Unit::MegabytesPerSecond, &write?));
        figures.push(rate(&format!("read {what}"), Unit::MegabytesPerSecond, &read?));
    }
    fs::remove_dir_all(&dir).map_err(failed(&dir))?;
    Ok(figures)
}

/// An action on one file, by number of thread and file.
type FileAct<'a> = dyn Fn(u32, u32) -> std::io::Result<()> + Sync + 'a;

/// Makes, fills, renames and removes files, with the messages that this costs backups.
fn names(
    formation: &Formation<'_, '_>,
    dir: &Path,
    (threads, files): (u32, u32),
) -> BenchResult<Vec<Figure>> {
    let path = |thread: u32, name: &str, file: u32| dir.join(format!("{name}-{thread}-{file}"));
    let each = |act: &FileAct<'_>| {
        let done = |thread: u32| {
            (0..files).try_for_each(|file| act(thread, file)).map_err(failed(dir)).map(|()| u64::from(files))
        };
        together(threads, done)
    };
    let acts: [(&str, &FileAct<'_>); 4] = [
        ("create", &|thread, file| File::create_new(path(thread, "a", file)).map(drop)),
        ("create and write 3,901 bytes", &|thread, file| fs::write(path(thread, "c", file), [7; 3901])),
        ("rename", &|thread, file| fs::rename(path(thread, "a", file), path(thread, "b", file))),
        ("remove", &|thread, file| {
            fs::remove_file(path(thread, "b", file)).and_then(|()| fs::remove_file(path(thread, "c", file)))
        }),
    ];
    let mut figures = Vec::new();
    for (what, act) in acts {
        let before = formation.calls(CHANGES)?;
        let parts = each(act)?;
        let calls = formation.calls(CHANGES)?.saturating_sub(before);
        let what = format!("{what}, {threads} threads");
        figures.push(rate(&what, Unit::PerSecond, &parts));
        if threads == 1 {
            let per_file = calls as f64 / f64::from(files.max(1));
            figures.push(Figure::new(format!("{what}: messages to backups"), Unit::Requests, per_file));
        }
    }
    Ok(figures)
}

/// Does something in several threads at once; what each says that it has done is timed.
fn together(threads: u32, act: impl Fn(u32) -> BenchResult<u64> + Sync) -> BenchResult<Vec<Vec<TimedPart>>> {
    let timed = |thread: u32| {
        let start_ns = clock::now_ns();
        let units = act(thread)?;
        Ok(vec![TimedPart { what: String::new(), units, start_ns, end_ns: clock::now_ns() }])
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(move || timed(thread))).collect();
        let panicked = || BenchError::refused("a thread", "panicked");
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(panicked()))).collect()
    })
}

fn rate(what: &str, unit: Unit, parts: &[Vec<TimedPart>]) -> Figure {
    let per_second = rates(parts).first().map_or(0.0, |(_, rate)| *rate);
    let value = if unit == Unit::MegabytesPerSecond { per_second / 1e6 } else { per_second };
    Figure::new(what, unit, value)
}

fn write(path: &Path, at: u64, len: u64) -> BenchResult<u64> {
    let file = OpenOptions::new().write(true).open(path).map_err(failed(path))?;
    let (pattern, mut block) = (Pattern::new(at), vec![0; BLOCK as usize]);
    for offset in (at..at + len).step_by(BLOCK as usize) {
        pattern.restamp(&mut block, offset);
        if offset == at {
            pattern.fill(&mut block, offset);
        }
        file.write_all_at(&block, offset).map_err(failed(path))?;
    }
    Ok(len)
}

fn read(path: &Path, at: u64, len: u64) -> BenchResult<u64> {
    let file = File::open(path).map_err(failed(path))?;
    let (pattern, mut block) = (Pattern::new(at), vec![0; BLOCK as usize]);
    for offset in (at..at + len).step_by(BLOCK as usize) {
        file.read_exact_at(&mut block, offset).map_err(failed(path))?;
        // A part of it: comparing all would take as long as reading.
        if let Some(place) = pattern.mismatch(&block[..8192], offset) {
            return Err(BenchError::refused(
                path.display(),
                format_args!("wrong content at {}", offset + place as u64),
            ));
        }
    }
    Ok(len)
}

fn failed(path: &Path) -> impl Fn(std::io::Error) -> BenchError {
    let path = path.display().to_string();
    move |error| BenchError::refused(&path, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back_and_damage_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        File::create(&path).unwrap();
        assert_eq!(write(&path, 1 << 20, 2 << 20), Ok(2 << 20));
        assert_eq!(read(&path, 1 << 20, 2 << 20), Ok(2 << 20));
        File::options().write(true).open(&path).unwrap().write_all_at(b"x", (2 << 20) + 5).unwrap();
        assert!(read(&path, 1 << 20, 2 << 20).unwrap_err().to_string().contains("wrong content at 2097157"));
    }

    #[test]
    fn threads_are_timed_together() {
        let parts = together(3, |thread| Ok(u64::from(thread) + 1)).unwrap();
        assert_eq!(parts.iter().flatten().map(|part| part.units).sum::<u64>(), 6);
        assert!(rate("x", Unit::PerSecond, &parts).value > 0.0);
        assert!(together(2, |_| Err(BenchError::refused("a", "b"))).is_err());
    }
}
