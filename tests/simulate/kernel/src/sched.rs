//! Who runs, until when, and what time it is.
#![allow(unsafe_code, reason = "state that only the thread with the baton sees, which no type can say")]

use std::cell::{Cell, UnsafeCell};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use crate::calls::raw;
use crate::chance::Chance;
use crate::net::Net;

/// A process; 0 is who runs the simulation.
pub type Process = u32;

/// What the schedule may do, drawn or chosen per run.
#[derive(Clone, Debug)]
pub struct Limits {
    /// One in so many points another thread goes on.
    pub switch_one_in: u64,
    /// Longest time that a step takes, in nanoseconds.
    pub step_ns: u64,
    /// Steps after which the run has failed.
    pub steps_max: u64,
    /// Simulated time after which the run has failed.
    pub time_max: Duration,
    /// Shortest and longest way of bytes between hosts, in microseconds.
    pub latency_us: (u64, u64),
    /// Bytes that a connection takes before they are read.
    pub socket_bytes: usize,
    /// Whether log lines are printed when they are made.
    pub verbose: bool,
    /// What the log does not name: where the run's files are.
    pub root: String,
    /// What the system lies about.
    pub lie: Option<Lie>,
}

/// A lie of the simulated system, with which a run must fail: it shows that an oracle bites.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// Some writes say that they were done and are not.
    LostWrites,
    /// Some who wait are not woken.
    LostWakeups,
    /// Connections that end behind a cut, or with their process, are never seen to end.
    HiddenEnds,
    /// Some changes of replicas are acknowledged and not made; told by who sends them.
    LostChanges,
}

/// What a process' disk does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    /// One write in so many fails with EIO; 0 is none.
    pub write_fails: u64,
    /// One write or reservation in so many finds no space; 0 is none.
    pub full: u64,
    /// One sync in so many fails with EIO; 0 is none.
    pub sync_fails: u64,
    /// One call in so many takes long; 0 is none.
    pub slow: u64,
}

/// Called at every step with its number.
pub type Hook = Box<dyn FnMut(u64)>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Runnable,
    Waiting,
    Finished,
    Dead,
}

/// What a thread waits for.
#[derive(Clone, Debug)]
pub(crate) enum Wait {
    Nothing,
    /// To be woken through an address; the word is for who reads what a run hangs on.
    #[allow(dead_code, reason = "shown by Debug")]
    Address(&'static str, usize),
    /// For one of these descriptors.
    Io(Vec<(i32, u32)>),
    /// For an event of an epoll set.
    Epoll(i32),
    /// For a thread's end.
    End(usize),
}

struct Thread {
    name: String,
    process: Process,
    state: State,
    wait: Wait,
    /// Counts waits, so that a late timer is known to be one.
    turn: u64,
    timed_out: bool,
    baton: Box<AtomicU32>,
    pthread: usize,
    /// Where the next thread belongs that this one makes.
    next_process: Option<Process>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    Timer { thread: usize, turn: u64 },
    Arrive { conn: usize, from: usize },
    Syn { conn: usize },
    Accepted { conn: usize },
    Noticed { conn: usize, end: usize },
}

#[derive(Default)]
struct ProcessState {
    alive: bool,
    host: u32,
    name: String,
    disk: Disk,
}

pub(crate) struct Kernel {
    pub now: u64,
    steps: u64,
    pub chance: Chance,
    limits: Limits,
    threads: Vec<Thread>,
    current: usize,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    last_event: u64,
    processes: BTreeMap<Process, ProcessState>,
    last_process: Process,
    pub net: Net,
    hook: Option<Hook>,
    digest: u64,
    pub latency_us: (u64, u64),
    pub socket_bytes: usize,
}

struct Global(UnsafeCell<Option<Kernel>>);

// SAFETY: only the thread that has the baton looks inside; handing it over orders memory.
unsafe impl Sync for Global {}

static KERNEL: Global = Global(UnsafeCell::new(None));
static ON: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The number of this thread and one more; 0 if it is none of the schedule's.
    static ME: Cell<usize> = const { Cell::new(0) };
}

/// The state, for the thread that runs; none where nothing is simulated.
pub(crate) fn kernel() -> Option<&'static mut Kernel> {
    if !ON.load(Ordering::Relaxed) || ME.try_with(Cell::get).unwrap_or(0) == 0 {
        return None;
    }
    // SAFETY: the thread has the baton, as it runs; references do not outlive a call of this crate.
    unsafe { (*KERNEL.0.get()).as_mut() }
}

fn me() -> usize {
    ME.with(Cell::get) - 1
}

/// From now on this thread, as the only one of process 0, and all that it starts run by one schedule.
pub fn begin(seed: u64, limits: Limits) {
    let mut processes = BTreeMap::new();
    processes.insert(0, ProcessState { alive: true, host: 0, name: "world".into(), disk: Disk::default() });
    let main = Thread::new("main".into(), 0);
    let kernel = Kernel {
        now: 0,
        steps: 0,
        chance: Chance::new(seed),
        latency_us: limits.latency_us,
        socket_bytes: limits.socket_bytes,
        limits,
        threads: vec![main],
        current: 0,
        events: BinaryHeap::new(),
        last_event: 0,
        processes,
        last_process: 0,
        net: Net::default(),
        hook: None,
        digest: 0xcbf2_9ce4_8422_2325,
    };
    // SAFETY: nobody else runs by the schedule yet.
    unsafe { *KERNEL.0.get() = Some(kernel) };
    ME.with(|me| me.set(1));
    ON.store(true, Ordering::SeqCst);
}

impl Thread {
    fn new(name: String, process: Process) -> Thread {
        Thread {
            name,
            process,
            state: State::Runnable,
            wait: Wait::Nothing,
            turn: 0,
            timed_out: false,
            baton: Box::new(AtomicU32::new(0)),
            pthread: 0,
            next_process: None,
        }
    }
}

impl Kernel {
    pub fn process(&self) -> Process {
        self.threads[self.current].process
    }

    pub fn host(&self) -> u32 {
        self.host_of(self.process())
    }

    pub fn host_of(&self, process: Process) -> u32 {
        self.processes.get(&process).map_or(0, |state| state.host)
    }

    /// Whether the system lies about this now.
    pub fn lies(&mut self, lie: Lie, one_in: u64) -> bool {
        self.limits.lie == Some(lie) && self.chance.one_in(one_in)
    }

    pub fn disk(&self) -> Disk {
        self.processes.get(&self.process()).map(|state| state.disk).unwrap_or_default()
    }

    pub fn at(&mut self, moment: u64, event: Event) {
        self.last_event += 1;
        self.events.push(Reverse((moment, self.last_event, event)));
    }

    fn note(&mut self, what: u64) {
        self.digest = (self.digest ^ what).wrapping_mul(0x0000_0100_0000_01b3);
    }

    /// Does what is due.
    fn run_due(&mut self) {
        while self.events.peek().is_some_and(|Reverse((at, ..))| *at <= self.now) {
            let Some(Reverse((_, _, event))) = self.events.pop() else { return };
            match event {
                Event::Timer { thread, turn } => {
                    let sleeper = &mut self.threads[thread];
                    if sleeper.state == State::Waiting && sleeper.turn == turn {
                        (sleeper.state, sleeper.timed_out) = (State::Runnable, true);
                    }
                }
                event => {
                    crate::net::happen(self, event);
                    self.look_at_io();
                }
            }
        }
    }

    /// Lets those go on whose descriptors are ready.
    pub fn look_at_io(&mut self) {
        for number in 0..self.threads.len() {
            if self.threads[number].state != State::Waiting {
                continue;
            }
            let ready = match &self.threads[number].wait {
                Wait::Io(wanted) => wanted.iter().any(|(fd, events)| self.net.readiness(*fd) & events != 0),
                Wait::Epoll(fd) => self.net.has_event(*fd),
                _ => false,
            };
            if ready {
                self.wake(number);
            }
        }
    }

    fn wake(&mut self, number: usize) {
        let thread = &mut self.threads[number];
        (thread.state, thread.timed_out) = (State::Runnable, false);
    }

    /// A step of the thread that runs: time passes, what is due happens.
    fn step(&mut self) {
        self.steps += 1;
        self.now += 1 + self.chance.below(self.limits.step_ns);
        self.note(self.current as u64);
        if self.steps > self.limits.steps_max {
            self.fail("too many steps: somebody goes round in circles");
        }
        if let Some(mut hook) = self.hook.take() {
            hook(self.steps);
            if self.hook.is_none() {
                self.hook = Some(hook);
            }
        }
        self.run_due();
    }

    /// Chooses who goes on.
    fn choose(&mut self) -> usize {
        loop {
            let runnable: Vec<usize> = (0..self.threads.len())
                .filter(|number| self.threads[*number].state == State::Runnable)
                .collect();
            if !runnable.is_empty() {
                return *self.chance.pick(&runnable);
            }
            let Some(Reverse((at, ..))) = self.events.peek() else {
                self.fail("deadlock: no thread can go on, and nothing is due")
            };
            self.now = self.now.max(*at);
            if self.now > self.limits.time_max.as_nanos() as u64 {
                self.fail("the simulated time is over: somebody waits for ever");
            }
            self.run_due();
        }
    }

    /// Paths differ from run to run; what is said of them must not.
    pub fn log(&mut self, text: &str) {
        let text = text.replace(&self.limits.root, "(volumes)");
        let thread = &self.threads[self.current];
        let process = self.processes.get(&thread.process).map_or("", |process| process.name.as_str());
        let line = format!(
            "{:>10}.{:03} {:>8} {process}/{}: {text}\n",
            self.now / 1_000_000,
            self.now / 1000 % 1000,
            self.steps,
            thread.name
        );
        line.bytes().for_each(|byte| self.note(u64::from(byte)));
        if self.limits.verbose {
            let _ = std::io::stdout().write_all(line.as_bytes());
        }
    }

    /// Ends the whole process, with a reason and what everybody does.
    fn fail(&mut self, reason: &str) -> ! {
        let mut text = format!("FAILED: {reason}\n");
        for (number, thread) in self.threads.iter().enumerate() {
            if matches!(thread.state, State::Finished | State::Dead) {
                continue;
            }
            let process = self.processes.get(&thread.process).map_or("", |process| process.name.as_str());
            let _ =
                writeln!(text, "  {number} {process}/{}: {:?} {:?}", thread.name, thread.state, thread.wait);
        }
        let _ = writeln!(
            text,
            "  after {} steps, {:.6} s; digest {:016x}",
            self.steps,
            self.now as f64 / 1e9,
            self.digest
        );
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(text.as_bytes());
        let _ = out.flush();
        raw::exit(1)
    }
}

/// Gives the baton to whom the schedule chooses, and waits until it comes back.
fn reschedule(kernel: &mut Kernel) {
    let (own, next) = (me(), kernel.choose());
    if own == next {
        return;
    }
    kernel.current = next;
    let own_baton: *const AtomicU32 = &*kernel.threads[own].baton;
    let next_baton: *const AtomicU32 = &*kernel.threads[next].baton;
    // SAFETY: batons are never freed.
    unsafe {
        hand_to(&*next_baton);
        take_from(&*own_baton);
    }
}

fn hand_to(baton: &AtomicU32) {
    baton.store(1, Ordering::Release);
    raw::futex_wake(baton);
}

fn take_from(baton: &AtomicU32) {
    while baton.swap(0, Ordering::Acquire) == 0 {
        raw::futex_wait(baton, 0);
    }
}

/// A place where another thread may go on.
pub fn point() {
    let Some(kernel) = kernel() else { return };
    kernel.step();
    if kernel.threads[me()].state != State::Runnable || kernel.chance.one_in(kernel.limits.switch_one_in) {
        reschedule(kernel);
    }
}

/// Waits for something; whether it came within the time, in nanoseconds.
pub(crate) fn wait(kernel: &mut Kernel, wait: Wait, time: Option<u64>) -> bool {
    let own = me();
    let thread = &mut kernel.threads[own];
    if thread.state == State::Runnable {
        (thread.state, thread.wait, thread.timed_out) = (State::Waiting, wait, false);
        thread.turn += 1;
        let turn = thread.turn;
        if let Some(time) = time {
            let moment = kernel.now.saturating_add(time);
            kernel.at(moment, Event::Timer { thread: own, turn });
        }
        // It may be there already.
        kernel.look_at_io();
    }
    // The wait is registered before the step: what happens in the step may wake this thread.
    kernel.step();
    reschedule(kernel);
    let thread = &mut kernel.threads[own];
    thread.wait = Wait::Nothing;
    !thread.timed_out
}

/// Waits until it is woken through an address; whether that was within the time.
pub fn wait_on(what: &'static str, address: usize, time: Option<Duration>) -> bool {
    let Some(kernel) = kernel() else {
        // Nobody else runs by the schedule; who comes here waits for what is real.
        std::thread::yield_now();
        return true;
    };
    let time = time.map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 2));
    wait(kernel, Wait::Address(what, address), time)
}

fn waiting_on(kernel: &Kernel, address: usize) -> Vec<usize> {
    let is_it = |thread: &Thread| {
        thread.state == State::Waiting && matches!(thread.wait, Wait::Address(_, other) if other == address)
    };
    (0..kernel.threads.len()).filter(|number| is_it(&kernel.threads[*number])).collect()
}

/// Wakes one of those who wait at an address; whether there was one.
pub fn wake_one(address: usize) -> bool {
    let Some(kernel) = kernel() else { return false };
    let waiting = waiting_on(kernel, address);
    if waiting.is_empty() {
        return false;
    }
    let number = *kernel.chance.pick(&waiting);
    if !kernel.lies(Lie::LostWakeups, 50) {
        kernel.wake(number);
    }
    true
}

/// Wakes all who wait at an address, and says how many.
pub fn wake_all(address: usize) -> usize {
    let Some(kernel) = kernel() else { return 0 };
    let waiting = waiting_on(kernel, address);
    waiting.iter().for_each(|number| kernel.wake(*number));
    waiting.len()
}

/// Lets a simulated time pass.
pub fn sleep(time: Duration) {
    if let Some(kernel) = kernel() {
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 2);
        wait(kernel, Wait::Nothing, Some(time));
    }
}

/// A new process on a host.
pub fn new_process(name: &str, host: u32) -> Process {
    let Some(kernel) = kernel() else { return 0 };
    kernel.last_process += 1;
    let state = ProcessState { alive: true, host, name: name.into(), disk: Disk::default() };
    kernel.processes.insert(kernel.last_process, state);
    kernel.last_process
}

/// The next thread that is started by this one is the first of a process.
pub fn spawn_in<R>(process: Process, spawn: impl FnOnce() -> R) -> R {
    if let Some(kernel) = kernel() {
        kernel.threads[me()].next_process = Some(process);
    }
    spawn()
}

/// Ends a process at once, wherever its threads are. Nothing of it runs any more.
pub fn kill(process: Process) {
    end(process, "is killed");
}

/// The process of the thread that runs ends: it does not go on from its next step, nor do the others.
pub fn exit() {
    end(process(), "ends");
}

fn end(process: Process, how: &str) {
    let Some(kernel) = kernel() else { return };
    let Some(state) = kernel.processes.get_mut(&process).filter(|state| state.alive) else { return };
    state.alive = false;
    let name = state.name.clone();
    kernel.log(&format!("{name} {how}"));
    for thread in &mut kernel.threads {
        if thread.process == process && thread.state != State::Finished {
            thread.state = State::Dead;
        }
    }
    crate::net::close_all(kernel, process);
    kernel.look_at_io();
}

/// Whether a process was not killed.
#[must_use]
pub fn is_alive(process: Process) -> bool {
    kernel().is_some_and(|kernel| kernel.processes.get(&process).is_some_and(|state| state.alive))
}

/// The process of the thread that runs.
#[must_use]
pub fn process() -> Process {
    kernel().map_or(0, |kernel| kernel.process())
}

/// What one host sends to another does not arrive any more.
pub fn cut(from: u32, to: u32) {
    if let Some(kernel) = kernel() {
        kernel.log(&format!("cut: nothing goes from host {from} to host {to}"));
        kernel.net.cuts.insert((from, to));
    }
}

/// Connections from one host to another end for the first alone; the other one notices after this time. New ones are as ever.
pub fn leave_half_open(from: u32, to: u32, unnoticed: Duration) {
    if let Some(kernel) = kernel() {
        kernel.log(&format!("half open for {unnoticed:?}: connections of host {from} to host {to}"));
        kernel.leave_half_open(from, to, u64::try_from(unnoticed.as_nanos()).unwrap_or(u64::MAX / 2));
        kernel.look_at_io();
    }
}

/// Whether the system lies about this now.
pub fn lies(lie: Lie, one_in: u64) -> bool {
    kernel().is_some_and(|kernel| kernel.lies(lie, one_in))
}

/// All cuts end.
pub fn heal() {
    if let Some(kernel) = kernel()
        && !kernel.net.cuts.is_empty()
    {
        kernel.log("healed: all hosts reach each other");
        kernel.net.cuts.clear();
    }
}

/// What the disk of a process does from now on.
pub fn set_disk(process: Process, disk: Disk) {
    if let Some(state) = kernel().and_then(|kernel| kernel.processes.get_mut(&process)) {
        state.disk = disk;
    }
}

/// Called at every step from now on, in whichever thread runs. It may kill, cut and heal, and must not wait.
pub fn with_hook(hook: Hook) {
    if let Some(kernel) = kernel() {
        kernel.hook = Some(hook);
    }
}

/// The simulated time since the beginning.
#[must_use]
pub fn now() -> Duration {
    Duration::from_nanos(kernel().map_or(0, |kernel| kernel.now))
}

/// Steps so far.
#[must_use]
pub fn steps() -> u64 {
    kernel().map_or(0, |kernel| kernel.steps)
}

/// A line of the run's log, which is part of its digest. The digest so far.
pub fn log_line(text: &str) -> u64 {
    kernel().map_or(0, |kernel| {
        kernel.log(text);
        kernel.digest
    })
}

/// Changes how likely it is that another thread goes on, and how long bytes are under way.
pub fn advise(switch_one_in: u64, latency_us: (u64, u64)) {
    if let Some(kernel) = kernel() {
        kernel.limits.switch_one_in = switch_one_in.max(1);
        kernel.latency_us = latency_us;
    }
}

/// The run has failed.
pub fn fail(reason: &str) -> ! {
    match kernel() {
        Some(kernel) => kernel.fail(reason),
        None => {
            let _ = writeln!(std::io::stdout(), "FAILED: {reason}");
            raw::exit(1)
        }
    }
}

/// A thread is made: its number.
pub(crate) fn adopt() -> Option<usize> {
    let kernel = kernel()?;
    let own = kernel.process();
    let process = kernel.threads[me()].next_process.take().unwrap_or(own);
    let mut thread = Thread::new(String::new(), process);
    if !kernel.processes.get(&process).is_some_and(|process| process.alive) {
        // Its process was killed before its first thread was started.
        thread.state = State::Dead;
    }
    kernel.threads.push(thread);
    Some(kernel.threads.len() - 1)
}

/// A thread could not be made after all.
pub(crate) fn disown(number: usize) {
    if let Some(kernel) = kernel() {
        kernel.threads[number].state = State::Finished;
    }
}

pub(crate) fn is_made(number: usize, pthread: usize) {
    if let Some(kernel) = kernel() {
        kernel.threads[number].pthread = pthread;
    }
}

/// The first thing that a new thread does: it waits for its turn.
pub(crate) fn enter(number: usize, baton: &AtomicU32) {
    take_from(baton);
    ME.with(|me| me.set(number + 1));
}

pub(crate) fn baton_of(number: usize) -> *const AtomicU32 {
    kernel().map_or(std::ptr::null(), |kernel| &raw const *kernel.threads[number].baton)
}

/// The last thing that a thread does.
pub(crate) fn leave() {
    let Some(kernel) = kernel() else { return };
    kernel.step();
    let own = me();
    kernel.threads[own].state = State::Finished;
    for number in 0..kernel.threads.len() {
        let thread = &kernel.threads[number];
        if thread.state == State::Waiting && matches!(thread.wait, Wait::End(other) if other == own) {
            kernel.wake(number);
        }
    }
    let next = kernel.choose();
    kernel.current = next;
    ME.with(|me| me.set(0));
    hand_to(&kernel.threads[next].baton);
}

/// Waits for a thread's end.
pub(crate) fn await_end(pthread: usize) {
    loop {
        let Some(kernel) = kernel() else { return };
        let found = kernel.threads.iter().position(|t| t.pthread == pthread && t.state != State::Finished);
        let Some(number) = found else { return };
        wait(kernel, Wait::End(number), None);
    }
}

pub(crate) fn name_thread(pthread: usize, name: &str) {
    if let Some(kernel) = kernel()
        && let Some(thread) = kernel.threads.iter_mut().rfind(|thread| thread.pthread == pthread)
    {
        thread.name = name.into();
    }
}
