//! Blocking calls to many nodes or hosts at the same time.

/// Maximum number of threads: at least one for each of as many nodes as have processes of their own on one machine.
const THREADS_MAX: usize = 256;

/// Maps all items at the same time; `None` for one whose thread panicked.
pub fn parallel_map<T: Sync, A: Send>(all: &[T], map: impl Fn(&T) -> A + Sync) -> Vec<Option<A>> {
    // One thread for several, so that a thousand nodes are not as many threads; those that answer do so at once.
    let share = all.len().div_ceil(THREADS_MAX).max(1);
    let map_some = |some: &[T]| some.iter().map(&map).map(Some).collect::<Vec<_>>();
    std::thread::scope(|scope| {
        let map_some = &map_some;
        let threads: Vec<_> =
            all.chunks(share).map(|some| (some.len(), scope.spawn(move || map_some(some)))).collect();
        let none = |count: usize| (0..count).map(|_| None).collect();
        let mapped: Vec<Option<A>> = threads
            .into_iter()
            .flat_map(|(count, thread)| thread.join().unwrap_or_else(|_| none(count)))
            .collect();
        // Who asks takes them for those of the items, one by one.
        assert_eq!(mapped.len(), all.len(), "items that were mapped");
        mapped
    })
}
