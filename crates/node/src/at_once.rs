//! Several requests at a time.

/// Does something for each, each but the last in a thread of its own: one that takes long uses no other's time. `None`
/// of one whose thread panicked.
pub fn each_at_once<'a, T: Sync, R: Send>(all: &'a [T], act: impl Fn(&'a T) -> R + Sync) -> Vec<Option<R>> {
    let Some((last, others)) = all.split_last() else { return Vec::new() };
    std::thread::scope(|scope| {
        let act = &act;
        let spawn =
            |one| std::thread::Builder::new().name("ask".into()).spawn_scoped(scope, move || act(one));
        let begun: Vec<_> = others.iter().map(|one| (one, spawn(one))).collect();
        let of_last = act(last);
        if !begun.is_empty() {
            // Only here: until now this thread was at work itself.
            bivouac_net::before_waiting();
        }
        // Without a thread it is done now.
        let outcomes = begun.into_iter().map(|(one, thread)| match thread {
            Ok(thread) => thread.join().ok(),
            Err(_) => Some(act(one)),
        });
        outcomes.chain([Some(of_last)]).collect()
    })
}
