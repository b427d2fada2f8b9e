//! Judgement of the facts: what is missing, what that costs, and how to get it.

use bivouac_types::units::format_size;

use super::{Check, HostAnswer, HostFacts, Severity};

/// The oldest kernel that formations are tested with.
const KERNEL_MIN: (u32, u32) = (5, 15);
/// Kernels with what older ones lack: shared writable mappings, requests that are sent again.
const KERNEL_MAPS: (u32, u32) = (6, 6);
const KERNEL_RESENDS: (u32, u32) = (6, 9);
/// Open files with which a formation of some hundred nodes runs, and processes.
const OPEN_FILES: u64 = 4096;
const PROCESSES: u64 = 1024;
/// Memory below which a formation in memory has hardly room for its own processes, in bytes.
const MEMORY: u64 = 256 << 20;

/// Returns all checks, in the order in which they are shown.
pub fn judge(facts: &HostFacts) -> Vec<Check> {
    let mut checks = vec![
        kernel(&facts.kernel),
        device(facts),
        mounting(facts),
        others(facts),
        ring(facts),
        limit("open files", facts.open_files, OPEN_FILES, "nofile"),
        limit("processes", facts.processes, PROCESSES, "nproc"),
        memory(facts),
        memory_place(facts),
        runtime_dir(facts),
        preload(facts),
        launchers(facts),
    ];
    checks.extend(facts.hosts.iter().map(host));
    checks
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn kernel(release: &str) -> Check {
    let lacks = |level, costs: &str| {
        let remedy = "a newer kernel: 6.9 or later has all that formations use";
        Check::lacks(level, "kernel", format!("Linux {release}"), costs, remedy)
    };
    match version(release) {
        Some(version) if version < KERNEL_MIN => {
            lacks(Severity::Missing, "formations are made for Linux 5.15 and later")
        }
        Some(version) if version < KERNEL_MAPS => lacks(
            Severity::Note,
            "no shared writable mappings of files (mmap), and calls fail that a killed daemon had begun",
        ),
        Some(version) if version < KERNEL_RESENDS => lacks(
            Severity::Note,
            "calls fail that a killed daemon had begun: the kernel does not send them again",
        ),
        Some(_) => Check::ok("kernel", format!("Linux {release}")),
        None => lacks(Severity::Note, "its version cannot be read"),
    }
}

fn device(facts: &HostFacts) -> Check {
    match &facts.no_device {
        None => Check::ok("/dev/fuse", "can be opened"),
        Some(why) => Check::lacks(
            Severity::Missing,
            "/dev/fuse",
            why,
            "nothing can be mounted: only `up --no-mount` with libbivouac, HTTP and S3",
            "as root: modprobe fuse; in a container: give it the device (docker run --device /dev/fuse)",
        ),
    }
}

fn mounting(facts: &HostFacts) -> Check {
    const NAME: &str = "mounting";
    let install = "install the package fuse3 (apt-get install fuse3, dnf install fuse3)";
    match (&facts.helper, &facts.no_namespaces) {
        _ if facts.may_mount => Check::ok(NAME, "as root, by itself"),
        (Some((path, true)), _) => Check::ok(NAME, path),
        (Some((path, false)), _) => Check::lacks(
            Severity::Missing,
            NAME,
            format!("{path} is not set-user-id root"),
            "an ordinary user's `up` cannot mount",
            "as root: chmod u+s on it, or install fuse3 again",
        ),
        (None, None) => Check::lacks(
            Severity::Note,
            NAME,
            "fusermount3 is not installed",
            "`up` needs --no-mount; `run` mounts in namespaces of its own, which other commands do not see",
            install,
        ),
        (None, Some(why)) => Check::lacks(
            Severity::Missing,
            NAME,
            format!("fusermount3 is not installed, and {why}"),
            "neither `up` nor `run` can mount",
            install,
        ),
    }
}

fn others(facts: &HostFacts) -> Check {
    const NAME: &str = "other users";
    if facts.may_mount || facts.user_allow_other {
        return Check::ok(NAME, "can be let in, with --allow-other");
    }
    Check::lacks(
        Severity::Note,
        NAME,
        "user_allow_other is not in /etc/fuse.conf",
        "--allow-other is refused: nobody else can enter your mounts, nor can root (Slurm's chdir)",
        "as root: echo user_allow_other >>/etc/fuse.conf",
    )
}

fn ring(facts: &HostFacts) -> Check {
    let found = match facts.fuse_uring {
        None => "the kernel has none (6.14 and later)",
        Some(false) => "is off",
        Some(true) => "is on",
    };
    // A killed daemon would not be a pause over a ring: decision 0001.
    Check::ok("FUSE over io_uring", format!("{found}; mounts do not use it, so nothing is gained by it"))
}

fn limit(name: &str, found: Option<u64>, enough: u64, word: &str) -> Check {
    match found {
        None => Check::ok(name, "no limit"),
        Some(limit) if limit >= enough => Check::ok(name, format!("up to {limit}")),
        Some(limit) => Check::lacks(
            Severity::Note,
            name,
            format!("up to {limit}"),
            "formations of many nodes or hosts do not start, and programs with many files meet the limit",
            &format!("raise it: ulimit -H, or {word} in /etc/security/limits.conf, to {enough} or more"),
        ),
    }
}

fn memory(facts: &HostFacts) -> Check {
    let group = facts.group.as_ref().map(|group| format!("; {group}")).unwrap_or_default();
    let found = format!("{} available{group}", format_size(facts.available_bytes));
    if facts.available_bytes >= MEMORY {
        return Check::ok("memory", found);
    }
    let remedy = "ask the batch system for more (--mem), or lend disks: --volume DIR";
    Check::lacks(Severity::Note, "memory", found, "volumes in memory are small: they are half of it", remedy)
}

fn memory_place(facts: &HostFacts) -> Check {
    match &facts.memory_place {
        Ok(free) => Check::ok("/dev/shm", format!("{} free", format_size(*free))),
        Err(why) => Check::lacks(
            Severity::Missing,
            "/dev/shm",
            why,
            "no volumes in memory, and no direct access",
            "mount a tmpfs there; in a container: docker run --shm-size, or --ipc=host",
        ),
    }
}

fn runtime_dir(facts: &HostFacts) -> Check {
    const NAME: &str = "runtime directory";
    match &facts.runtime_dir {
        Err(why) => Check::lacks(Severity::Missing, NAME, why, "no formation can be started", ""),
        Ok(path) if facts.has_runtime_dir => Check::ok(NAME, path),
        Ok(path) => Check::lacks(
            Severity::Note,
            NAME,
            format!("{path}; XDG_RUNTIME_DIR is not set"),
            "a login or a job with another one does not find formations of this one",
            "export BIVOUAC_RUNTIME_DIR=DIR, the same in all of them",
        ),
    }
}

fn preload(facts: &HostFacts) -> Check {
    match &facts.preload {
        Some(path) => Check::ok("preload", path),
        None => Check::lacks(
            Severity::Note,
            "preload",
            "libbivouac_preload.so is not beside this program",
            "reads and writes of `run` and `exec` go through the mount, which is slower",
            "unpack bivouac-libraries-… over the program, or scripts/install-preload",
        ),
    }
}

fn launchers(facts: &HostFacts) -> Check {
    const NAME: &str = "several hosts";
    let job = facts.job.as_ref().map(|job| format!("; in job {job}")).unwrap_or_default();
    if !facts.launchers.is_empty() {
        return Check::ok(NAME, format!("by {}{job}", facts.launchers.join(", ")));
    }
    Check::lacks(
        Severity::Note,
        NAME,
        format!("neither ssh, srun, mpiexec, flux nor pbsdsh is here{job}"),
        "formations are on this machine alone",
        "install openssh-client, or load the batch system's module",
    )
}

fn host(host: &HostAnswer) -> Check {
    let name = format!("host {}", host.name);
    match &host.has_program {
        Ok(true) => Check::ok(&name, "lets you in, and has bivouac"),
        Ok(false) => Check::lacks(
            Severity::Note,
            &name,
            "lets you in, and has no bivouac in its PATH",
            "`up --hosts` needs to be told where it is, unless it is at the same path as here",
            "--send sends this program along; --program PATH names the one there",
        ),
        Err(why) => Check::lacks(
            Severity::Missing,
            &name,
            why,
            "`up --hosts` cannot start anything there by ssh",
            "set up ssh without a question (ssh-copy-id, ssh-agent), or another way with --launch",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine that has all.
    fn whole() -> HostFacts {
        HostFacts {
            kernel: "6.18.44-x".into(),
            helper: Some(("/usr/bin/fusermount3".into(), true)),
            user_allow_other: true,
            fuse_uring: Some(false),
            open_files: Some(1 << 20),
            available_bytes: 8 << 30,
            memory_place: Ok(4 << 30),
            runtime_dir: Ok("/run/user/1000/bivouac".into()),
            has_runtime_dir: true,
            preload: Some("/usr/lib/libbivouac_preload.so".into()),
            launchers: vec!["ssh"],
            no_device: None,
            may_mount: false,
            no_namespaces: None,
            processes: None,
            group: None,
            job: None,
            hosts: Vec::new(),
        }
    }

    fn of(facts: &HostFacts, name: &str) -> Check {
        judge(facts).into_iter().find(|check| check.name == name).unwrap()
    }

    #[test]
    fn a_machine_that_has_all_lacks_nothing() {
        for check in judge(&whole()) {
            assert_eq!(check.level, Severity::Ok, "{check:?}");
        }
    }

    type Change<'a> = &'a dyn Fn(&mut HostFacts);

    #[test]
    fn what_is_missing_has_a_price_and_a_remedy() {
        let broken: [(&str, Severity, Change<'_>); 14] = [
            ("kernel", Severity::Missing, &|facts| facts.kernel = "5.4.0".into()),
            ("kernel", Severity::Note, &|facts| facts.kernel = "5.15.167.4-microsoft".into()),
            ("kernel", Severity::Note, &|facts| facts.kernel = "6.8.0-45-generic".into()),
            ("/dev/fuse", Severity::Missing, &|facts| facts.no_device = Some("no such file".into())),
            ("mounting", Severity::Note, &|facts| facts.helper = None),
            ("mounting", Severity::Missing, &|facts| {
                (facts.helper, facts.no_namespaces) = (None, Some("user.max_user_namespaces is 0".into()));
            }),
            ("mounting", Severity::Missing, &|facts| {
                facts.helper = Some(("/usr/bin/fusermount3".into(), false))
            }),
            ("other users", Severity::Note, &|facts| facts.user_allow_other = false),
            ("open files", Severity::Note, &|facts| facts.open_files = Some(1024)),
            ("memory", Severity::Note, &|facts| facts.available_bytes = 100 << 20),
            ("/dev/shm", Severity::Missing, &|facts| facts.memory_place = Err("is missing".into())),
            ("runtime directory", Severity::Note, &|facts| facts.has_runtime_dir = false),
            ("preload", Severity::Note, &|facts| facts.preload = None),
            ("several hosts", Severity::Note, &|facts| facts.launchers.clear()),
        ];
        for (name, level, damage) in broken {
            let mut facts = whole();
            damage(&mut facts);
            let check = of(&facts, name);
            assert_eq!(check.level, level, "{check:?}");
            assert!(check.costs.is_some() && check.remedy.is_some(), "{check:?}");
            assert_eq!(judge(&facts).iter().filter(|check| check.level != Severity::Ok).count(), 1, "{name}");
        }
        // Root needs neither the helper nor the setting.
        let root = HostFacts { may_mount: true, helper: None, user_allow_other: false, ..whole() };
        assert!(judge(&root).iter().all(|check| check.level == Severity::Ok));
    }

    #[test]
    fn hosts_are_judged_one_by_one() {
        let answer = |name: &str, has_program| HostAnswer { name: name.into(), has_program };
        let hosts = vec![
            answer("n1", Ok(true)),
            answer("n2", Ok(false)),
            answer("n3", Err("Permission denied (publickey).".into())),
        ];
        let facts = HostFacts { hosts, ..whole() };
        let levels = ["host n1", "host n2", "host n3"].map(|name| of(&facts, name).level);
        assert_eq!(levels, [Severity::Ok, Severity::Note, Severity::Missing]);
        assert!(of(&facts, "host n3").found.contains("Permission denied"));
    }
}
