//! What the system reports about a thread that waits for the reply to a request.

use bivouac_client::Caller;

/// Number of SIGKILL.
const KILL: u32 = 9;

/// Returns the further groups of a thread. None, if the thread cannot be seen from here.
pub fn groups(thread: u32) -> Vec<u32> {
    let groups = |line: &str| line.split_whitespace().filter_map(|group| group.parse().ok()).collect();
    field(thread, "Groups:").map_or_else(Vec::new, |line| groups(&line))
}

/// Returns whether a signal has come that ends a thread, whichever that was: to the kernel it is SIGKILL then, pending
/// for each thread. Not so, as far as is known, of a thread that cannot be seen from here.
pub fn is_killed(thread: u32) -> bool {
    let pending = field(thread, "SigPnd:").and_then(|line| u64::from_str_radix(line.trim(), 16).ok());
    // Pending still: the thread takes it only when it returns from the kernel, which waits for the answer.
    pending.is_some_and(|pending| pending & 1 << (KILL - 1) != 0)
}

/// Returns the process that a thread belongs to.
pub fn process(thread: u32) -> Caller {
    let pid = field(thread, "Tgid:").and_then(|pid| pid.trim().parse().ok()).unwrap_or(0);
    let name = (pid != 0).then(|| std::fs::read(format!("/proc/{pid}/comm")).ok()).flatten();
    Caller { pid, program: name.unwrap_or_default().trim_ascii_end().to_vec() }
}

/// Returns a line of `/proc/THREAD/status`. The kernel numbers threads of other process namespaces 0.
fn field(thread: u32, name: &str) -> Option<String> {
    let status = (thread != 0).then(|| std::fs::read_to_string(format!("/proc/{thread}/status")))?.ok()?;
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_runs_is_not_killed() {
        let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        assert!(!is_killed(thread) && field(thread, "SigPnd:").is_some());
        let own = process(thread);
        assert!(own.pid == std::process::id() && !own.program.is_empty());
        assert_eq!(process(u32::MAX), Caller::default());
        assert!(!is_killed(0) && groups(0).is_empty() && field(u32::MAX, "SigPnd:").is_none());
    }
}
