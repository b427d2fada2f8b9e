//! Mounted file systems by /proc/mounts.

use bivouac_sysmap::Mount;

use super::mountinfo::{ListedMount, hide, unescaped};
use crate::machine::Machine;
use crate::sources::Source;

pub const SOURCE: Source<Vec<Mount>> = Source { name: "mounts", look };

fn look(machine: &dyn Machine) -> Option<Vec<Mount>> {
    let text = machine.text("/proc/mounts")?;
    let mount = |line: &str| {
        let fields: Vec<&str> = line.split(' ').collect();
        let [source, path, fs_type, options, ..] = fields.as_slice() else { return None };
        let read_only = options.split(',').any(|option| option == "ro");
        ListedMount {
            path: unescaped(path.as_bytes()),
            source: unescaped(source.as_bytes()),
            fs_type,
            read_only,
        }
        .mount(machine)
    };
    let mut mounts: Vec<Mount> = text.lines().filter_map(mount).collect();
    hide(&mut mounts);
    Some(mounts)
}
