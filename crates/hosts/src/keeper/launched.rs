//! The processes that reach the hosts: what they are given, what they say, and how they end.

use std::collections::VecDeque;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use bivouac_launch::hex::to_hex;
use bivouac_launch::spawned::{ProcessEnd, Spawned};
use bivouac_launch::start::not_by_hand;
use bivouac_launch::{Kind, LaunchError, LaunchResult, Launcher, StateDir, for_people, unblock_in};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Signal;
use sha2::{Digest, Sha256};

use crate::launcher::{LauncherCall, RemoteCommand, SentProgram, TicketDelivery, calls, ticket_delivery};
use crate::start::Plan;
use crate::ticket::Ticket;

/// Bytes of a launcher's output that are kept.
const SAID_MAX: usize = 1 << 16;
/// Lines of it that are shown where it cannot be told which of them matter.
const SAID_LINES: usize = 12;
/// Exit code of a shell for a program that it does not find.
const CODE_NOT_FOUND: i32 = 127;
/// Exit code of ssh when there was no connection, or no more.
const CODE_SSH: i32 = 255;

/// A process of the launcher's.
#[derive(Debug)]
pub(super) struct Launched {
    process: Spawned,
    /// Its standard input, open as long as the hosts are to go on.
    input: Option<OwnedFd>,
    /// Input that is still to be given to it.
    pending: VecDeque<(Arc<Vec<u8>>, usize)>,
    /// Its standard output and standard error.
    output: Option<OwnedFd>,
    said: Vec<u8>,
    hosts: Vec<usize>,
    names: Vec<String>,
    ended: Option<ProcessEnd>,
    /// True if it goes on without this process.
    is_left: bool,
    program: String,
    is_ssh: bool,
    /// The ticket's file, removed with this.
    file: Option<PathBuf>,
}

/// Starts what reaches all hosts.
pub(super) fn launch(dir: &StateDir, plan: &Plan) -> LaunchResult<Vec<Launched>> {
    let (content, remote) = match &plan.send {
        Some(path) => {
            let (content, remote) = read_program(path)?;
            (Some(Arc::new(content)), remote)
        }
        None => (None, RemoteCommand::installed(&plan.program, None)),
    };
    let (remote, file) = match ticket_delivery(&plan.launcher) {
        TicketDelivery::File => {
            let path = write_ticket(dir, plan)?;
            (RemoteCommand::installed(&plan.program, path.to_str()), Some(path))
        }
        TicketDelivery::Input | TicketDelivery::Environment => (remote, None),
    };
    let calls = calls(&plan.launcher, &plan.hosts, &remote, plan.mpi, plan.ticket.silence_ms);
    let mut file = file;
    calls.into_iter().map(|call| start(plan, call, content.as_ref(), file.take())).collect()
}

fn start(
    plan: &Plan,
    call: LauncherCall,
    content: Option<&Arc<Vec<u8>>>,
    file: Option<PathBuf>,
) -> LaunchResult<Launched> {
    let (program, arguments) = call.arguments.split_first().ok_or_else(not_by_hand)?;
    let refused = |e: std::io::Error| {
        let remedy = format!("install it, or choose another way: --launch (needed is {program})");
        LaunchError::new(Kind::Refused, &plan.launcher, e, &remedy)
    };
    let host = call.hosts.first().filter(|_| plan.launcher.is_per_host());
    let host = host.and_then(|host| plan.hosts.get(*host)).map(|host| host.name.clone());
    // A host that joins has a ticket of its own, whatever starts it.
    let host = host.or_else(|| plan.ticket.host.clone());
    let mut ticket = Ticket { host, ..plan.ticket.clone() };
    if let Some(host) = &ticket.host {
        ticket.nodes_of.retain(|(name, _)| name == host);
    }
    let ticket = ticket.to_line();
    let (output, theirs) = pipe_with(PipeFlags::CLOEXEC).map_err(|e| refused(e.into()))?;
    // The keeper does more than to hear launchers: it must not wait for one.
    rustix::io::ioctl_fionbio(&output, true).map_err(|e| refused(e.into()))?;
    let mut command = Command::new(program);
    command.args(arguments).stdout(theirs.try_clone().map_err(refused)?).stderr(theirs);
    let mut pending = VecDeque::new();
    match ticket_delivery(&plan.launcher) {
        TicketDelivery::Input => {
            command.stdin(Stdio::piped());
            pending.extend(content.map(|content| (Arc::clone(content), 0)));
            pending.push_back((Arc::new(ticket.into_bytes()), 0));
        }
        TicketDelivery::Environment => {
            command.stdin(Stdio::null()).env("BIVOUAC_TICKET", ticket.trim_end());
        }
        TicketDelivery::File => drop(command.stdin(Stdio::null())),
    }
    // What the terminal sends to the user's command is none of its business.
    command.process_group(0);
    unblock_in(&mut command);
    let mut child = command.spawn().map_err(refused)?;
    let input = child.stdin.take().map(OwnedFd::from);
    let process = Spawned::watch(child).map_err(refused)?;
    if let Some(input) = &input {
        rustix::io::ioctl_fionbio(input, true).map_err(|e| refused(e.into()))?;
    }
    let names = call.hosts.iter().filter_map(|host| Some(plan.hosts.get(*host)?.name.clone())).collect();
    Ok(Launched {
        process,
        input,
        pending,
        output: Some(output),
        said: Vec::new(),
        hosts: call.hosts,
        names,
        ended: None,
        is_left: false,
        program: plan.program.clone(),
        is_ssh: plan.launcher == Launcher::Ssh,
        file,
    })
}

/// Writes a ticket for launchers that pass on neither input nor environment: a file in the user's home, which all hosts
/// see.
fn write_ticket(dir: &StateDir, plan: &Plan) -> LaunchResult<PathBuf> {
    let home = plan.home.as_deref().unwrap_or_else(|| dir.path());
    let path = home.join(format!(".bivouac-ticket-{}", plan.ticket.formation));
    let refused = |e| LaunchError::path(&path, "write the ticket", e);
    let mut open = std::fs::OpenOptions::new();
    // New, and readable for this user only: the home directory is on every host, and others may look into it.
    let mut file = open.write(true).create_new(true).mode(0o600).open(&path).map_err(refused)?;
    file.write_all(plan.ticket.to_line().as_bytes()).map_err(refused)?;
    Ok(path)
}

impl Launched {
    /// Descriptors to poll, with their events.
    pub fn descriptors(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let input = self.input.as_ref().filter(|_| !self.pending.is_empty());
        let end = Some(self.process.as_fd()).filter(|_| self.ended.is_none());
        let output = self.output.iter().map(AsFd::as_fd).chain(end);
        let output = output.map(|descriptor| (descriptor, PollFlags::IN));
        output.chain(input.map(|input| (input.as_fd(), PollFlags::OUT)))
    }

    /// Sets the one host that it reaches, by its position in the formation.
    pub fn set_host(&mut self, host: usize) {
        assert!(self.hosts.len() == 1, "a launcher of {} hosts is said to be of one", self.hosts.len());
        self.hosts = vec![host];
    }

    pub fn reaches(&self, host: usize) -> bool {
        self.hosts.contains(&host)
    }

    pub fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// Gives it what it takes, hears what it says, and sees whether it has ended.
    pub fn attend(&mut self) {
        self.give();
        self.hear();
        if self.ended.is_none() {
            self.ended = self.process.look();
            // Heard once more: what it wrote just before its end is still in the pipe.
            if self.ended.is_some() {
                self.hear();
                self.input = None;
            }
        }
    }

    fn give(&mut self) {
        while let (Some(input), Some((content, at))) = (&self.input, self.pending.front_mut()) {
            match rustix::io::write(input, content.get(*at..).unwrap_or_default()) {
                Ok(written) => *at += written,
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => continue,
                // It has ended, and says why by itself.
                Err(_) => return self.pending.clear(),
            }
            if *at >= content.len() {
                self.pending.pop_front();
            }
        }
    }

    fn hear(&mut self) {
        let mut buffer = [0; 4096];
        while let Some(output) = &self.output {
            match rustix::io::read(output, &mut buffer) {
                Ok(0) => self.output = None,
                Ok(len) => self.said.extend_from_slice(buffer.get(..len).unwrap_or_default()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => self.output = None,
            }
        }
        // The end is kept: a launcher that fails says why in its last lines.
        let surplus = self.said.len().saturating_sub(SAID_MAX);
        self.said.drain(..surplus);
    }

    /// Returns the hosts that will not report any more, each with the reason.
    pub fn ended_hosts(&mut self) -> Vec<(usize, String)> {
        let ended = |host: &usize| Some((*host, self.reason(*host)?));
        self.hosts.iter().filter_map(ended).collect()
    }

    /// Returns the reason why a host will not report any more; `None` as long as it may.
    pub fn reason(&self, host: usize) -> Option<String> {
        let text = self.said();
        if self.hosts.len() > 1 {
            let position = self.hosts.iter().position(|known| *known == host)?;
            let name = self.names.get(position)?;
            let exit = exit_line(&text, name);
            let status = self.ended.map(|end| format!("the launcher ended ({end})"));
            let last = labelled(&text, position);
            return exit.or(status).map(|how| last.map_or(how.clone(), |line| format!("{line} ({how})")));
        }
        let end = self.ended?;
        let error = text.lines().find(|line| line.starts_with("error: unrecognized")).map(str::to_owned);
        let last = error.or_else(|| last_line(&text)).unwrap_or_else(|| "it said nothing".into());
        Some(explain(end, &last, &self.program, self.is_ssh))
    }

    /// Returns the output of a launcher of several hosts, if none of it says of a host how that one ended.
    pub fn of_no_host(&self) -> Option<String> {
        let text = self.said();
        let silent = self.names.iter().all(|name| exit_line(&text, name).is_none());
        (self.hosts.len() > 1 && silent).then(|| quoted(&text))
    }

    /// Returns the last output of a host, though it may still report.
    pub fn words(&self, host: usize) -> Option<String> {
        let text = self.said();
        let position = self.hosts.iter().position(|known| *known == host)?;
        if self.hosts.len() > 1 { labelled(&text, position) } else { last_line(&text) }
    }

    /// Returns its output, with log events in the form for people.
    fn said(&self) -> String {
        for_people(&String::from_utf8_lossy(&self.said)).into_owned()
    }

    /// Removes the ticket's file, if there is one.
    pub fn forget_ticket(&mut self) {
        if let Some(path) = self.file.take()
            && let Err(error) = std::fs::remove_file(&path)
        {
            log::warn!(why:% = error; "{}", path.display());
        }
    }

    /// Lets it run on when this process ends.
    pub fn leave_running(&mut self) {
        self.is_left = true;
    }

    /// Closes the launcher's input: the hosts behind it see its end.
    pub fn close(&mut self) {
        self.pending.clear();
        self.input = None;
    }

    /// Sends a signal to the launcher and to what it has started here.
    pub fn kill(&self, signal: Signal) {
        if self.ended.is_none() {
            self.process.signal_group(signal);
        }
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        self.forget_ticket();
        if self.is_left {
            return;
        }
        self.kill(Signal::KILL);
        self.process.wait();
    }
}

/// Returns the explanation of an end, as far as the exit code gives one.
fn explain(end: ProcessEnd, last: &str, program: &str, is_ssh: bool) -> String {
    let missing = ["no such file", "not found"].iter().any(|text| last.to_lowercase().contains(text));
    match end.code() {
        Some(CODE_SSH) if is_ssh || last.starts_with("ssh: ") => format!("unreachable: {last}"),
        Some(CODE_NOT_FOUND | 126) if missing => {
            format!(
                "bivouac is not there: {last}; install it as {program}, name its path with --program, or send it along: --send"
            )
        }
        Some(2) if last.starts_with("error: unrecognized") => {
            format!(
                "version: its bivouac knows nothing of formations over hosts ({last}); use one release on all hosts, or --send"
            )
        }
        _ => format!("{last} ({end})"),
    }
}

/// Returns the first lines with something in them, for below an error: what follows on a cause comes behind it.
fn quoted(text: &str) -> String {
    let lines = text.lines().map(str::trim_end).filter(|line| line.contains(char::is_alphanumeric));
    let lines: Vec<String> = lines.take(SAID_LINES).map(|line| format!("\n  {line}")).collect();
    if lines.is_empty() { String::new() } else { format!("\nthe launcher said:{}", lines.concat()) }
}

fn last_line(text: &str) -> Option<String> {
    let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty())?;
    Some(line.strip_prefix("bivouac: ").unwrap_or(line).to_owned())
}

/// Returns the last line of one task, as `srun --label` marks it.
fn labelled(text: &str, task: usize) -> Option<String> {
    let line = text.lines().rev().find_map(|line| {
        let (label, line) = line.split_once(": ")?;
        (label.trim().parse() == Ok(task) && !line.trim().is_empty()).then(|| line.trim())
    })?;
    Some(line.strip_prefix("bivouac: ").unwrap_or(line).to_owned())
}

/// Returns the line in which `srun` reports the end of a task: `srun: error: n3: task 2: Exited with exit code 2`.
fn exit_line(text: &str, host: &str) -> Option<String> {
    text.lines().rev().find_map(|line| {
        let (_, rest) = line.split_once(&format!("error: {host}: task"))?;
        let (_, how) = rest.split_once(": ")?;
        Some(how.trim().to_owned())
    })
}

/// Returns the program to send, and what is to be started to receive it.
fn read_program(path: &Path) -> LaunchResult<(Vec<u8>, RemoteCommand)> {
    let content = std::fs::read(path).map_err(|e| LaunchError::path(path, "read the program to send", e))?;
    if !content.starts_with(b"\x7fELF") {
        return Err(LaunchError::new(
            Kind::Refused,
            path.display(),
            "is no program",
            "send a build of bivouac",
        ));
    }
    let sent = SentProgram { len: content.len(), digest: to_hex(&Sha256::digest(&content)) };
    Ok((content, RemoteCommand::sent(&sent)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    #[test]
    fn reasons_are_told_from_exit_codes() {
        let code = |code: i32| ProcessEnd(Some(ExitStatus::from_raw(code << 8)));
        let ssh = "ssh: connect to host n9 port 22: No route to host";
        assert_eq!(explain(code(255), ssh, "/b", true), format!("unreachable: {ssh}"));
        let missing = explain(code(127), "sh: 1: /b: not found", "/b", true);
        assert!(missing.starts_with("bivouac is not there") && missing.contains("--send"), "{missing}");
        let old = explain(code(2), "error: unrecognized subcommand 'join'", "/b", true);
        assert!(old.starts_with("version: "), "{old}");
        assert_eq!(explain(code(1), "no space", "/b", true), "no space (exit code 1)");
        let killed = explain(ProcessEnd(Some(ExitStatus::from_raw(9))), "x", "/b", true);
        assert_eq!(killed, "x (killed by signal 9 (SIGKILL))");
    }

    #[test]
    fn lines_of_one_task_are_found() {
        let text = "0: bivouac: a\n1: bivouac: b\nsrun: error: n2: task 1: Exited with exit code 1\n";
        assert_eq!(labelled(text, 1).as_deref(), Some("b"));
        assert_eq!(labelled(text, 2), None);
        assert_eq!(exit_line(text, "n2").as_deref(), Some("Exited with exit code 1"));
        assert_eq!(exit_line(text, "n1"), None);
        assert_eq!(last_line("a\nbivouac: b\n\n").as_deref(), Some("b"));
        assert_eq!(last_line("\n"), None);
        assert_eq!(
            quoted("-----\n\nno such host: x \nand so on\n"),
            "\nthe launcher said:\n  no such host: x\n  and so on"
        );
        assert_eq!(quoted("--\n"), "");
    }
}
