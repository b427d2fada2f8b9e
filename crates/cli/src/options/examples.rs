//! Examples of every command, for its help and its manual page.

use clap::CommandFactory;

use super::Cli;
use super::groups::grouped;

/// Commands and what to type; those of `stage`, `partition` and others have two words.
const EXAMPLES: &[(&str, &[&str])] = &[
    (
        "up",
        &[
            "bivouac up --nodes 4",
            "bivouac up camp --nodes 2 --volume /local/scratch:100g",
            "bivouac up --hosts n[1-4] --owner $$",
        ],
    ),
    (
        "status",
        &[
            "bivouac status",
            "bivouac status camp --json",
            "bivouac status --watch=5s",
            "bivouac status --lost",
        ],
    ),
    ("path", &["bivouac path", "bivouac path camp --node 1"]),
    ("top", &["bivouac top", "bivouac top --name camp --every 5s", "bivouac top --once --json"]),
    (
        "report",
        &[
            "bivouac report",
            "bivouac report --json before.json",
            "bivouac report --compare before.json --html report.html",
        ],
    ),
    ("metrics", &["bivouac metrics", "bivouac metrics --name camp --format prometheus"]),
    ("logs", &["bivouac logs", "bivouac logs --node 0 --supervisor -n 20", "bivouac logs --follow --json"]),
    (
        "races",
        &["bivouac races", "bivouac races --json /tmp/camp/results", "bivouac races --name camp --all"],
    ),
    ("down", &["bivouac down", "bivouac down camp --yes"]),
    ("grow", &["bivouac grow --hosts n5", "bivouac grow camp --hosts n[5-6] --timeout 10m --json"]),
    ("shrink", &["bivouac shrink --hosts n4", "bivouac shrink camp --hosts n[3-4] --timeout 10m --json"]),
    ("doctor", &["bivouac doctor", "bivouac doctor --hosts n[1-4] --json"]),
    ("list", &["bivouac list", "bivouac list --json"]),
    (
        "recover",
        &["bivouac recover camp", "bivouac recover camp --volume /local/disk1 --volume /local/disk2"],
    ),
    ("reap", &["bivouac reap --dry-run", "bivouac reap"]),
    (
        "run",
        &[
            "bivouac run --nodes 4 --in data --out results:results -- ./analyse.sh",
            "bivouac run --in mesh --out out:/project/out -- sh -c 'cd $BIVOUAC && mpirun solver'",
            "bivouac run --out ckpt:/project/ckpt --out-every 10m -- srun solver",
        ],
    ),
    ("exec", &["bivouac exec -- sh -c 'ls $BIVOUAC'", "bivouac exec --name camp --cd=run -- ./solver"]),
    ("stage", &["bivouac stage in data /input", "bivouac stage out /results results"]),
    (
        "stage in",
        &[
            "bivouac stage in mesh params.toml /run/",
            "bivouac stage in --dry-run --exclude '*.tmp' data /input",
        ],
    ),
    (
        "stage out",
        &[
            "bivouac stage out /results /project/results",
            "bivouac stage out --changed-since in --json /results results",
        ],
    ),
    ("stage status", &["bivouac stage status", "bivouac stage status 2 --json"]),
    ("stage resume", &["bivouac stage resume 2"]),
    ("stage cancel", &["bivouac stage cancel 2"]),
    ("mount", &["bivouac mount /tmp/camp", "bivouac mount --node 1 /tmp/camp1"]),
    ("unmount", &["bivouac unmount /tmp/camp"]),
    (
        "explain",
        &[
            "bivouac explain include.tar",
            "bivouac explain --offset 3m include.tar",
            "bivouac explain --pid 4711",
        ],
    ),
    ("partition", &["bivouac partition list"]),
    (
        "partition create",
        &[
            "bivouac partition create scratch --nodes 0-1",
            "bivouac partition create project --source /project/data",
        ],
    ),
    ("partition list", &["bivouac partition list"]),
    ("partition show", &["bivouac partition show project"]),
    ("partition set", &["bivouac partition set project --capacity 10g"]),
    ("partition remove", &["bivouac partition remove project"]),
    ("contract", &["bivouac contract show results"]),
    ("contract show", &["bivouac contract show results", "bivouac contract show --json results/*.h5"]),
    (
        "contract set",
        &["bivouac contract set strict shared.h5", "bivouac contract set --recursive session checkpoints"],
    ),
    (
        "laminate",
        &[
            "bivouac laminate inputs results/final.h5",
            "bivouac laminate --verify inputs",
            "bivouac laminate --undo results/final.h5",
        ],
    ),
    ("key", &["bivouac key list"]),
    (
        "key create",
        &[
            "bivouac key create --header-file key",
            "bivouac key create --path /results --read-only --expires 8h --key-file results.key",
        ],
    ),
    ("key list", &["bivouac key list", "bivouac key list --json"]),
    ("key revoke", &["bivouac key revoke BVKABCDEFGHIJKLMNOPQ"]),
    (
        "publish",
        &[
            "bivouac publish results --title 'Wing, fine mesh' --words 'cfd wing' --to /project/catalogue",
            "bivouac publish results --title wing --licence CC-BY-4.0 --expires 30d --site s3://bucket/results --to s3://bucket/catalogue",
        ],
    ),
    (
        "find",
        &["bivouac find wing --in /project/catalogue", "bivouac find --json --in https://host/catalogue"],
    ),
    ("unpublish", &["bivouac unpublish wing-fine-mesh-0123456789ab --in /project/catalogue"]),
    (
        "get",
        &[
            "bivouac get wing-fine-mesh-0123456789ab --in /project/catalogue",
            "bivouac get https://127.0.0.1:8443/results/a.h5 a.h5",
        ],
    ),
    ("share", &["bivouac share results/a.h5 --expires 8h"]),
    ("link", &["bivouac link add far login2.other.example:7000 --key-file far.key"]),
    (
        "link add",
        &[
            "bivouac link add far login2.other.example:7000 --key-file far.key",
            "bivouac link add meshes 10.2.0.1:7000 --key-file meshes.key --at /inputs/meshes",
        ],
    ),
    ("link list", &["bivouac link list", "bivouac link list --name camp --json"]),
    ("link show", &["bivouac link show far", "bivouac link show far --json"]),
    ("link listen", &["bivouac link listen 0.0.0.0:7000"]),
    ("link remove", &["bivouac link remove far"]),
    ("config", &["bivouac config --check camp.toml"]),
    (
        "fsck",
        &[
            "bivouac fsck",
            "bivouac fsck --scrub",
            "bivouac fsck --offline camp",
            "bivouac fsck --offline --repair camp",
        ],
    ),
    (
        "scrub",
        &["bivouac scrub", "bivouac scrub --rate 100m /tmp/camp/results", "bivouac scrub --name camp --json"],
    ),
    ("flush", &["bivouac flush project", "bivouac flush --dry-run project/run1"]),
    ("pin", &["bivouac pin project/mesh"]),
    ("unpin", &["bivouac unpin project/mesh"]),
    (
        "plan",
        &[
            "bivouac plan --nodes 8 --scan data --reads 20",
            "bivouac plan --from-report reports/ --write camp.toml",
            "bivouac plan --nodes 64 --checkpoint 200g --checkpoint-every 10m --run-time 6h --write camp.toml",
        ],
    ),
    ("plan calibrate", &["bivouac plan calibrate /project/scratch"]),
    ("plan reset", &["bivouac plan reset"]),
    ("pool", &["bivouac pool list"]),
    (
        "pool create",
        &[
            "bivouac pool create mesh --from /project/mesh --days 60 --title wing",
            "bivouac pool create out --base /scratch/pools",
        ],
    ),
    ("pool list", &["bivouac pool list", "bivouac pool list --json"]),
    ("pool find", &["bivouac pool find wing fine"]),
    ("pool show", &["bivouac pool show mesh", "bivouac pool show 1001/mesh --json"]),
    ("pool path", &["bivouac pool path mesh"]),
    ("pool history", &["bivouac pool history mesh"]),
    ("pool count", &["bivouac pool count out"]),
    (
        "pool archive",
        &[
            "bivouac pool archive mesh --to /archive/pools",
            "bivouac pool archive mesh --to /archive/pools --free",
            "bivouac pool archive mesh --to s3://cold/pools --free",
        ],
    ),
    ("pool remind", &["bivouac pool remind --dry-run", "bivouac pool remind --sendmail /usr/bin/msmtp"]),
    (
        "pool reminder",
        &[
            "bivouac pool reminder mesh --remind 7 --mail me@site.example",
            "bivouac pool reminder mesh --none",
        ],
    ),
    ("pool ical", &["bivouac pool ical mesh"]),
    ("pool extend", &["bivouac pool extend mesh --days 30"]),
    ("pool release", &["bivouac pool release mesh"]),
    ("pool restore", &["bivouac pool restore mesh", "bivouac pool restore mesh#7"]),
    ("pool detach", &["bivouac pool detach mesh --formation camp"]),
    ("pool share", &["bivouac pool share mesh --group 1001 --ro"]),
    ("pool expire", &["bivouac pool expire --dry-run", "bivouac pool expire"]),
    ("pool stage", &["bivouac pool stage in mesh --slot 7"]),
    ("pool stage in", &["bivouac pool stage in mesh --slot 7", "bivouac pool stage in mesh --at /data/mesh"]),
    ("pool stage out", &["bivouac pool stage out results --slot 8"]),
    (
        "pool announce",
        &[
            "bivouac pool announce mesh --in --by 2h",
            "bivouac pool announce mesh --in --job 4711",
            "bivouac pool announce --out --size 2t --files 5000 --from 6h --by 12h --or-later",
        ],
    ),
    ("pool withdraw", &["bivouac pool withdraw 7"]),
    ("pool begin", &["bivouac pool begin 7", "bivouac pool begin 7 --no-wait"]),
    ("pool done", &["bivouac pool done 7"]),
    ("pool slots", &["bivouac pool slots", "bivouac pool slots --all --json"]),
    ("pool schedule", &["bivouac pool schedule"]),
    ("pool storage", &["bivouac pool storage", "bivouac pool storage --bandwidth 20g --user-share 25"]),
    ("pool follow", &["bivouac pool follow"]),
    (
        "system",
        &[
            "bivouac system",
            "bivouac system --hosts n[1-4] --format svg",
            "bivouac system --query '$.hosts[*].memory.total_bytes'",
        ],
    ),
    ("bench", &["bivouac bench io /dev/shm", "bivouac bench all --quick --out figures"]),
    ("completions", &["bivouac completions bash"]),
    ("man", &["bivouac man", "bivouac man /usr/local/share/man/man1"]),
];

/// Returns the table of commands and options, with examples.
pub fn command() -> clap::Command {
    grouped(with_examples(Cli::command(), ""))
}

fn with_examples(command: clap::Command, above: &str) -> clap::Command {
    command.mut_subcommands(|sub| {
        let path = format!("{above} {}", sub.get_name()).trim_start().to_owned();
        let sub = with_examples(sub, &path);
        match EXAMPLES.iter().find(|(name, _)| *name == path) {
            Some((_, lines)) => sub.after_help(format!("Examples:\n  {}", lines.join("\n  "))),
            None => sub,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words as a shell splits them, as far as the examples need it.
    fn words(line: &str) -> Vec<String> {
        let mut words = vec![String::new()];
        let mut quoted = false;
        for c in line.chars() {
            match c {
                '\'' => quoted = !quoted,
                ' ' if !quoted => words.push(String::new()),
                '$' if !quoted && line.ends_with("$$") => words.last_mut().unwrap().push('1'),
                c => words.last_mut().unwrap().push(c),
            }
        }
        words
    }

    #[test]
    fn every_example_is_understood() {
        for line in EXAMPLES.iter().flat_map(|(_, lines)| lines.iter()) {
            let parsed = Cli::read(words(line).into_iter().map(Into::into).collect());
            assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
        }
    }

    fn check(command: &clap::Command, above: &str) {
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
            let path = format!("{above} {}", sub.get_name()).trim_start().to_owned();
            if !path.starts_with("bench ") {
                let shown = sub.get_after_help().map(ToString::to_string).unwrap_or_default();
                assert!(shown.contains(&format!("bivouac {path}")), "{path} has no example");
                check(sub, &path);
            }
        }
    }

    #[test]
    fn every_command_has_an_example() {
        check(&command(), "");
    }
}
