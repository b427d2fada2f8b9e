//! A bounded number of threads for requests of which each waits for some round trips.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

/// Calls `act` for each item on up to `threads` threads, the calling one among them. Returns the items with the
/// results, in the order of their ends.
pub fn each_at_once<T: Sync, R: Send>(
    threads: usize,
    all: &[T],
    act: impl Fn(&T) -> R + Sync,
) -> Vec<(&T, R)> {
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some(one) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            let result = act(one);
            results.lock().push((one, result));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(all.len()) {
            // Not `scope.spawn`, which panics where the system has no thread: those there are do all of it then.
            if let Err(error) = std::thread::Builder::new().name("flush".to_owned()).spawn_scoped(scope, work)
            {
                log::debug!(why:% = error; "fewer files are brought to site storage at the same time");
                break;
            }
        }
        work();
    });
    let results = results.into_inner();
    assert_eq!(results.len(), all.len(), "each file that is brought to site storage has an outcome");
    results
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn each_is_done_once_and_so_many_at_the_same_time() {
        let (all, three) = ((0..9).collect::<Vec<u32>>(), Barrier::new(3));
        let mut done = each_at_once(3, &all, |one| {
            three.wait();
            one * 2
        });
        done.sort_unstable();
        assert_eq!(done, all.iter().map(|one| (one, one * 2)).collect::<Vec<_>>());
        assert_eq!(each_at_once(0, &all, |_| ()).len(), 9);
    }
}
