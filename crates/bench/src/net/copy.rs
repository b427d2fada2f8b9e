//! The same copies over any way: large requests by several connections at once, small ones by one.

use serde::{Deserialize, Serialize};

use super::CopyPlan;
use crate::barrier::Barrier;
use crate::pattern::{Pattern, mix};
use crate::timed_part::TimedPart;
use crate::{BenchError, BenchResult, clock};

/// Bytes of a small request.
const SMALL: usize = 4096;

/// One connection.
pub trait CopyMethod: Send {
    /// Writes all of `data` at `offset`.
    fn write(&mut self, offset: u64, data: &[u8]) -> BenchResult<()>;

    /// Reads all of `into` from `offset`.
    ///
    /// # Errors
    /// What the other side refuses; a file that is too short.
    fn read(&mut self, offset: u64, into: &mut [u8]) -> BenchResult<()>;

    /// The smallest request there is.
    fn ping(&mut self) -> BenchResult<()>;
}

/// Result of a copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// The large requests.
    pub timed: Vec<TimedPart>,
    /// The times of small requests, in nanoseconds.
    pub latencies_ns: Vec<(String, Vec<u64>)>,
}

/// Copies over the given ways to a new file and back.
///
/// # Errors
/// The first failure; bytes that are not those that were written.
pub fn copy<W: CopyMethod>(
    plan: &CopyPlan,
    ways: &mut [W],
    barrier: &mut dyn Barrier,
) -> BenchResult<Outcome> {
    let content = Pattern::new(1);
    let mut buffers: Vec<Vec<u8>> = ways.iter().map(|_| vec![1; plan.size as usize]).collect();
    let mut timed = Vec::new();
    for (what, writes) in [("write", true), ("rewrite", true), ("read", false)] {
        // Outside of the time: making content costs more than sending it.
        buffers.iter_mut().for_each(|buffer| content.fill(buffer, 0));
        barrier.wait()?;
        let start_ns = clock::now_ns();
        together(ways, &mut buffers, |index, way, buffer| one(plan, &content, index, way, buffer, writes))?;
        let units = plan.total * ways.len() as u64;
        timed.push(TimedPart { what: what.to_owned(), units, start_ns, end_ns: clock::now_ns() });
    }
    let last = plan.total.saturating_sub(plan.size);
    if buffers.first().is_some_and(|read| content.mismatch(read, last).is_some()) {
        return Err(BenchError::refused("read", "bytes are not those that were written"));
    }
    let latencies_ns = ways.first_mut().map_or(Ok(Vec::new()), |way| latencies(plan, way))?;
    Ok(Outcome { timed, latencies_ns })
}

/// Everything that one connection copies.
fn one<W: CopyMethod>(
    plan: &CopyPlan,
    content: &Pattern,
    index: u64,
    way: &mut W,
    buffer: &mut [u8],
    writes: bool,
) -> BenchResult<()> {
    for block in 0..plan.total / plan.size.max(1) {
        let offset = index * plan.total + block * plan.size;
        if writes {
            content.restamp(buffer, offset);
            way.write(offset, buffer)?;
        } else {
            way.read(offset, buffer)?;
        }
    }
    Ok(())
}

/// Has every connection do its part: the only one in this thread, several in one each.
fn together<W: CopyMethod>(
    ways: &mut [W],
    buffers: &mut [Vec<u8>],
    act: impl Fn(u64, &mut W, &mut [u8]) -> BenchResult<()> + Sync,
) -> BenchResult<()> {
    let act = &act;
    // Without a thread, which would be started in the time that is measured.
    if let ([way], [buffer]) = (&mut *ways, &mut *buffers) {
        return act(0, way, buffer);
    }
    std::thread::scope(|scope| {
        let parts = (0..).zip(ways.iter_mut().zip(buffers.iter_mut()));
        let threads: Vec<_> =
            parts.map(|(index, (way, buffer))| scope.spawn(move || act(index, way, buffer))).collect();
        let ended = threads.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|_| Err(BenchError::refused("a connection", "its thread panicked")))
        });
        // All are joined, also behind a failure: a scope panics for a thread that panicked and was not joined.
        ended.collect::<Vec<_>>().into_iter().collect()
    })
}

fn latencies<W: CopyMethod>(plan: &CopyPlan, way: &mut W) -> BenchResult<Vec<(String, Vec<u64>)>> {
    let mut buffer = vec![1; SMALL.min(plan.total as usize)];
    let blocks = (plan.total / SMALL as u64).max(1);
    let place = |at: u64| mix(at) % blocks * SMALL as u64;
    let small = |what: &str| format!("4 KiB {what}");
    let mut all = vec![("ping".to_owned(), times(plan.calls, |_| way.ping())?)];
    all.push((small("write"), times(plan.calls, |at| way.write(place(at), &buffer))?));
    all.push((small("read"), times(plan.calls, |at| way.read(place(at), &mut buffer))?));
    Ok(all)
}

fn times(calls: u32, mut call: impl FnMut(u64) -> BenchResult<()>) -> BenchResult<Vec<u64>> {
    let time = |at| {
        let start = clock::now_ns();
        call(at)?;
        Ok(clock::now_ns().saturating_sub(start))
    };
    (0..u64::from(calls)).map(time).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::barrier::LoneProcess;
    use crate::net::tests::small;
    use std::sync::{Arc, Mutex};

    /// A file in this process.
    #[derive(Clone, Default)]
    struct Memory(Arc<Mutex<Vec<u8>>>);

    impl CopyMethod for Memory {
        fn write(&mut self, offset: u64, data: &[u8]) -> BenchResult<()> {
            let (mut file, start) = (self.0.lock().unwrap(), offset as usize);
            let len = file.len().max(start + data.len());
            file.resize(len, 0);
            file[start..start + data.len()].copy_from_slice(data);
            Ok(())
        }

        fn read(&mut self, offset: u64, into: &mut [u8]) -> BenchResult<()> {
            into.copy_from_slice(&self.0.lock().unwrap()[offset as usize..][..into.len()]);
            Ok(())
        }

        fn ping(&mut self) -> BenchResult<()> {
            Ok(())
        }
    }

    #[test]
    fn everything_is_copied_once() {
        for streams in [1, 2] {
            let file = Memory::default();
            let plan = CopyPlan { streams, calls: 0, ..small() };
            let mut ways = vec![file.clone(); streams as usize];
            let outcome = copy(&plan, &mut ways, &mut LoneProcess(0)).unwrap();
            let names: Vec<&str> = outcome.timed.iter().map(|timed| timed.what.as_str()).collect();
            assert_eq!(names, ["write", "rewrite", "read"]);
            assert!(outcome.timed.iter().all(|timed| timed.units == 32_768 * u64::from(streams)));
            let content = file.0.lock().unwrap();
            assert_eq!(content.len(), 32_768 * streams as usize);
            assert_eq!(Pattern::new(1).mismatch(&content, 0), None);
        }
    }

    #[test]
    fn small_requests_are_timed_one_by_one() {
        let outcome = copy(&small(), &mut [Memory::default()], &mut LoneProcess(0)).unwrap();
        let counts: Vec<(&str, usize)> =
            outcome.latencies_ns.iter().map(|(what, times)| (what.as_str(), times.len())).collect();
        assert_eq!(counts, [("ping", 20), ("4 KiB write", 20), ("4 KiB read", 20)]);
    }

    #[test]
    fn a_failure_of_any_connection_is_the_outcome() {
        #[derive(Clone)]
        struct Refusing;
        impl CopyMethod for Refusing {
            fn write(&mut self, offset: u64, _: &[u8]) -> BenchResult<()> {
                if offset > 40_000 { Err(BenchError::refused("write", "no")) } else { Ok(()) }
            }
            fn read(&mut self, _: u64, _: &mut [u8]) -> BenchResult<()> {
                Ok(())
            }
            fn ping(&mut self) -> BenchResult<()> {
                Ok(())
            }
        }
        let error = copy(&small(), &mut [Refusing, Refusing], &mut LoneProcess(0)).unwrap_err();
        assert_eq!(error.to_string(), "write: no");
        let plan = CopyPlan { streams: 1, ..small() };
        struct Lying;
        impl CopyMethod for Lying {
            fn write(&mut self, _: u64, _: &[u8]) -> BenchResult<()> {
                Ok(())
            }
            fn read(&mut self, _: u64, into: &mut [u8]) -> BenchResult<()> {
                into.fill(0);
                Ok(())
            }
            fn ping(&mut self) -> BenchResult<()> {
                Ok(())
            }
        }
        let error = copy(&plan, &mut [Lying], &mut LoneProcess(0)).unwrap_err();
        assert_eq!(error.to_string(), "read: bytes are not those that were written");
    }
}
