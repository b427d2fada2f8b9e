//! A bounded pool of threads for independent requests, whose latency dominates their cost.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// Calls `work` for each number below `count` on up to `threads` threads, the calling thread among them.
///
/// # Errors
/// The first failure: nothing is begun after it, what was begun is waited for.
pub fn for_each_parallel<E: Send>(
    count: u64,
    threads: usize,
    work: impl Fn(u64) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let (next, failed) = (AtomicU64::new(0), Mutex::new(None));
    let run = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return;
            }
            if let Err(error) = work(number) {
                // Ends the distribution of numbers: running calls finish, further ones do not start.
                next.store(count, Ordering::Relaxed);
                failed.lock().get_or_insert(error);
            }
        }
    };
    let threads = threads.min(usize::try_from(count).unwrap_or(threads));
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // Ignored: with fewer threads the work takes longer but is complete.
            let _ = std::thread::Builder::new().name("source".to_owned()).spawn_scoped(scope, run);
        }
        run();
    });
    failed.into_inner().map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn each_is_done_once_and_several_at_once() {
        let (done, together) = (Mutex::new(Vec::new()), Barrier::new(4));
        for_each_parallel(4, 4, |number| {
            together.wait();
            done.lock().push(number);
            Ok::<(), ()>(())
        })
        .unwrap();
        let mut done = done.into_inner();
        done.sort_unstable();
        assert_eq!(done, [0, 1, 2, 3]);
        assert_eq!(for_each_parallel(0, 4, |_| Err("nothing is to be done")), Ok(()));
    }

    #[test]
    fn the_first_failure_ends_it() {
        let done = AtomicU64::new(0);
        let work = |number| match number {
            3 => Err(number),
            _ => {
                done.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
        };
        assert_eq!(for_each_parallel(1 << 40, 1, work), Err(3));
        assert_eq!(done.into_inner(), 3);
    }
}
