//! Mounted file systems by /proc/self/mountinfo and what each says of its room.

use bivouac_sysmap::{Mount, MountKind};
use bivouac_types::mount_table::{MountLine, mount_lines, unescape};

use super::last;
use crate::machine::Machine;
use crate::sources::Source;

pub const SOURCE: Source<Vec<Mount>> = Source { name: "mountinfo", look };

/// File systems without storage: what the kernel says as files, and what leads to others.
const PSEUDO: [&str; 24] = [
    "autofs",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "fusectl",
    "hugetlbfs",
    "mqueue",
    "nfsd",
    "nsfs",
    "proc",
    "pstore",
    "rpc_pipefs",
    "securityfs",
    "selinuxfs",
    "smackfs",
    "sysfs",
    "tracefs",
    "cpuset",
];

/// Storage of a site, by the type of the mount.
const SITE: [(&str, &str); 20] = [
    ("lustre", "Lustre"),
    ("gpfs", "GPFS"),
    ("beegfs", "BeeGFS"),
    ("nfs", "NFS"),
    ("nfs4", "NFS"),
    ("ceph", "CephFS"),
    ("fuse.ceph", "CephFS"),
    ("fuse.ceph-fuse", "CephFS"),
    ("panfs", "PanFS"),
    ("pvfs2", "OrangeFS"),
    ("glusterfs", "GlusterFS"),
    ("fuse.glusterfs", "GlusterFS"),
    ("wekafs", "WekaFS"),
    ("fuse.dfuse", "DAOS"),
    ("fuse.daos", "DAOS"),
    ("fuse.juicefs", "JuiceFS"),
    ("fuse.quobyte", "Quobyte"),
    ("afs", "AFS"),
    ("cifs", "SMB"),
    ("smb3", "SMB"),
];

const LOCAL: [&str; 14] = [
    "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "vfat", "ntfs3", "squashfs", "iso9660", "erofs",
    "jfs", "bcachefs",
];

fn look(machine: &dyn Machine) -> Option<Vec<Mount>> {
    let text = machine.text("/proc/self/mountinfo")?;
    let mut mounts: Vec<Mount> =
        mount_lines(text.as_bytes()).filter_map(|line| mount(machine, line)).collect();
    hide(&mut mounts);
    Some(mounts)
}

/// Removes mounts that are hidden by another one: of several at one path the last one is there.
pub fn hide(mounts: &mut Vec<Mount>) {
    let mut seen = Vec::new();
    mounts.reverse();
    mounts.retain(|mount| {
        let is_new = !seen.contains(&mount.path);
        seen.push(mount.path.clone());
        is_new
    });
    mounts.reverse();
}

fn mount(machine: &dyn Machine, line: MountLine<'_>) -> Option<Mount> {
    let is_read_only = |options: &[u8]| options.split(|byte| *byte == b',').any(|option| option == b"ro");
    let read_only = is_read_only(line.options) || is_read_only(line.fs_options);
    let (path, source) = (unescaped(line.dir), unescaped(line.source));
    let mut mount = ListedMount { path, source, fs_type: str::from_utf8(line.fs_type).ok()?, read_only }
        .mount(machine)?;
    if mount.kind == Some(MountKind::Local) {
        // By number: sources such as `/dev/root` or names of the device mapper do not say which disk it is.
        let device = format!("/sys/dev/block/{}:{}", line.device.0, line.device.1);
        // Btrfs and ZFS have numbers that are no device's: there the source says it, if anything does.
        mount.disk = machine.real(&device).map(|path| last(&path).to_owned()).or(mount.disk);
    }
    Some(mount)
}

/// Returns a path or source of either list as text.
pub fn unescaped(field: &[u8]) -> String {
    String::from_utf8_lossy(&unescape(field)).into_owned()
}

/// A line of either list.
pub struct ListedMount<'a> {
    pub path: String,
    pub source: String,
    pub fs_type: &'a str,
    pub read_only: bool,
}

impl ListedMount<'_> {
    /// Returns it in the map's form; `None` if there is no storage behind it.
    pub fn mount(self, machine: &dyn Machine) -> Option<Mount> {
        let ListedMount { path, source, fs_type, read_only } = self;
        if PSEUDO.contains(&fs_type) {
            return None;
        }
        let product =
            SITE.iter().find(|(known, _)| *known == fs_type).map(|(_, product)| (*product).to_owned());
        let space = machine.space(&path);
        // Not `/dev/mapper/NAME`: that is no name of a disk.
        let disk = source.strip_prefix("/dev/").filter(|name| !name.contains('/')).map(str::to_owned);
        Some(Mount {
            kind: kind(fs_type),
            product,
            fs_type: fs_type.to_owned(),
            read_only,
            size_bytes: space.map(|space| space.size),
            disk,
            path,
            source,
        })
    }
}

fn kind(fs_type: &str) -> Option<MountKind> {
    match fs_type {
        "tmpfs" | "ramfs" => Some(MountKind::Memory),
        "overlay" => Some(MountKind::Overlay),
        other if SITE.iter().any(|(known, _)| *known == other) => Some(MountKind::Site),
        other if LOCAL.contains(&other) => Some(MountKind::Local),
        other if other == "fuse" || other.starts_with("fuse.") => Some(MountKind::Fuse),
        _ => None,
    }
}
