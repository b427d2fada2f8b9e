//! Detection of a standstill of the nodes of a process: a heartbeat that takes their locks.
//!
//! Requests register when they begin and end. While one has been under way for long, a thread of its own takes each
//! lock that requests need, one after the other. A request may wait for peers, for clients or for site storage, but
//! holds no lock meanwhile ([`bivouac_ranks`]). So a lock that cannot be taken for [`StandstillLimits::lock`] will
//! never be released. A process without requests is not woken.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bivouac_ranks::{Condvar, Mutex};

/// Threads that are told apart. Those beyond share their places with others.
const THREADS_MAX: usize = 512;

/// Time limits of the watch.
#[derive(Clone, Copy, Debug)]
pub struct StandstillLimits {
    /// Time between two looks at what is under way.
    pub period: Duration,
    /// Age at which a request counts as long under way.
    pub request: Duration,
    /// Longest wait of the watch for one lock.
    pub lock: Duration,
}

impl Default for StandstillLimits {
    fn default() -> StandstillLimits {
        let [period, request, lock] = [5, 20, 60].map(Duration::from_secs);
        StandstillLimits { period, request, lock }
    }
}

/// The requests that are under way in a process.
pub struct ActiveRequests {
    start: Instant,
    /// By thread, the start of its request in milliseconds since the start of the process, plus 1; 0 without a request.
    begun: Box<[AtomicU64]>,
    /// Set if the watch sleeps, and the next request has to wake it.
    sleeps: AtomicBool,
    has_news: Mutex<bool>,
    news: Condvar,
}

impl Default for ActiveRequests {
    fn default() -> ActiveRequests {
        ActiveRequests {
            start: Instant::now(),
            begun: (0..THREADS_MAX).map(|_| AtomicU64::new(0)).collect(),
            sleeps: AtomicBool::new(false),
            has_news: Mutex::default(),
            news: Condvar::new(),
        }
    }
}

/// A request under way.
#[must_use = "the request is over when this is dropped"]
pub struct ActiveRequest<'a>(Option<&'a AtomicU64>);

thread_local! {
    static THREAD: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Returns this thread's index.
fn place() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    THREAD.get().unwrap_or_else(|| {
        let place = NEXT.fetch_add(1, Ordering::Relaxed) % THREADS_MAX;
        THREAD.set(Some(place));
        place
    })
}

impl ActiveRequests {
    /// Notes that a request begins. One within another, of a node that is asked by a function call, is part of it.
    pub fn begin(&self) -> ActiveRequest<'_> {
        let Some(begun) = self.begun.get(place()) else { return ActiveRequest(None) };
        if begun.load(Ordering::Relaxed) != 0 {
            return ActiveRequest(None);
        }
        // In one order with `sleeps`: either the watch sees the request, or this sees that it sleeps.
        begun.store(self.start.elapsed().as_millis() as u64 + 1, Ordering::SeqCst);
        // Loaded first: nearly always it does not sleep, and a swap would have all threads share a cache line.
        if self.sleeps.load(Ordering::SeqCst) && self.sleeps.swap(false, Ordering::SeqCst) {
            *self.has_news.lock() = true;
            self.news.notify_one();
        }
        ActiveRequest(Some(begun))
    }

    /// Watches until something stands still, and says what. `look` takes the locks.
    pub fn watch(&self, patience: StandstillLimits, look: impl Fn(Duration) -> Option<String>) -> String {
        loop {
            self.wait_for_requests();
            while let Some(age) = self.oldest() {
                if age >= patience.request
                    && let Some(what) = look(patience.lock)
                {
                    return what;
                }
                let mut has_news = self.has_news.lock();
                let _ = self.news.wait_for(&mut has_news, patience.period);
            }
        }
    }

    /// Returns the age of the oldest request under way.
    fn oldest(&self) -> Option<Duration> {
        let begun =
            self.begun.iter().map(|begun| begun.load(Ordering::SeqCst)).filter(|begun| *begun > 0).min()?;
        Some(self.start.elapsed().saturating_sub(Duration::from_millis(begun - 1)))
    }

    fn wait_for_requests(&self) {
        let mut has_news = self.has_news.lock();
        self.sleeps.store(true, Ordering::SeqCst);
        while self.oldest().is_none() && !*has_news {
            self.news.wait(&mut has_news);
        }
        *has_news = false;
        self.sleeps.store(false, Ordering::SeqCst);
    }
}

impl Drop for ActiveRequest<'_> {
    fn drop(&mut self) {
        if let Some(begun) = self.0 {
            // The watch may see this late: it looks once more in vain then.
            begun.store(0, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const SOON: StandstillLimits = StandstillLimits {
        period: Duration::from_millis(1),
        request: Duration::ZERO,
        lock: Duration::from_millis(20),
    };

    /// S392.
    #[test]
    fn a_request_under_way_is_looked_after_until_something_stands_still() {
        let pulse = ActiveRequests::default();
        let (looked, news) = mpsc::channel();
        std::thread::scope(|scope| {
            let watch = scope.spawn(|| {
                let (looks, looked) = (Cell::new(0), looked);
                pulse.watch(SOON, |patience| {
                    looks.set(looks.get() + 1);
                    looked.send(patience).unwrap();
                    (looks.get() == 3).then(|| "the lock of the test".to_owned())
                })
            });
            let beat = pulse.begin();
            let within = pulse.begin();
            drop(within);
            assert_eq!(news.recv().unwrap(), SOON.lock);
            assert!(pulse.oldest().is_some(), "the outer one is still under way");
            assert_eq!(watch.join().unwrap(), "the lock of the test");
            drop(beat);
            assert!(pulse.oldest().is_none());
        });
    }

    #[test]
    fn who_has_no_requests_is_not_looked_after() {
        let pulse = ActiveRequests::default();
        drop(pulse.begin());
        let (looked, news) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                pulse.watch(SOON, move |_| {
                    looked.send(()).unwrap();
                    Some(String::new())
                })
            });
            while !pulse.sleeps.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            assert!(news.try_recv().is_err());
            let _beat = pulse.begin();
            news.recv().unwrap();
        });
    }
}
