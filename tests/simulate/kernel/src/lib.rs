//! One schedule for all threads of a process.
//!
//! Threads are real, but only the one that has the baton runs. Wherever a thread takes or gives up a lock, waits, asks for the
//! time, or calls the operating system, the schedule draws from its seed who goes on. What threads share with the machine is
//! answered here instead ([`calls`]): time, sockets, waiting, random numbers, how many processors it has and how busy they
//! are. Time passes by itself only when nobody can go on. So a seed gives the same run each time.
//!
//! A *process* is a set of threads and descriptors that can be [killed](kill) together, at any of these places: its threads never
//! run again, nothing of them is dropped, its descriptors are closed. What it had in memory stays there, unused.
//!
//! Code is not changed for it. Calls of the C library are resolved by the linker, so the functions in [`calls`] take the place
//! of the library's own for everything in the program, the standard library included; locks come by a `parking_lot` of the same
//! shape that asks here. A program of which [`begin`] was not called does as always.

pub mod calls;
mod chance;
mod net;
mod sched;

pub use chance::Chance;
pub use sched::{
    Disk, Hook, Lie, Limits, advise, begin, cut, exit, fail, heal, is_alive, kill, leave_half_open, lies,
    log_line, new_process, now, point, process, set_disk, sleep, spawn_in, steps, wait_on, wake_all,
    wake_one, with_hook,
};
