//! Mounted file systems by /proc/self/mountinfo and what each says of its room.

use bivouac_sysmap::{Mount, MountKind};

use super::last;
use crate::look::Source;
use crate::machine::Machine;

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
    let mut mounts: Vec<Mount> = text.lines().filter_map(|line| mount(machine, line)).collect();
    hide(&mut mounts);
    Some(mounts)
}

/// What is mounted over another one hides it: of several at one path the last one is there.
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

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw`
fn mount(machine: &dyn Machine, line: &str) -> Option<Mount> {
    let (fields, rest) = line.split_once(" - ")?;
    let fields: Vec<&str> = fields.split(' ').collect();
    let mut rest = rest.split(' ');
    let (fs_type, source, of_all) = (rest.next()?, rest.next()?, rest.next().unwrap_or_default());
    let (device, path, options) = (fields.get(2)?, fields.get(4)?, fields.get(5)?);
    let read_only = [options, &of_all].iter().any(|options| options.split(',').any(|option| option == "ro"));
    let found = Found { path: unescaped(path), source: unescaped(source), fs_type, read_only };
    let mut mount = found.mount(machine)?;
    if mount.kind == Some(MountKind::Local) {
        let disk = machine.real(&format!("/sys/dev/block/{device}")).map(|path| last(&path).to_owned());
        mount.disk = disk.or(mount.disk);
    }
    Some(mount)
}

/// What a line of either list says.
pub struct Found<'a> {
    pub path: String,
    pub source: String,
    pub fs_type: &'a str,
    pub read_only: bool,
}

impl Found<'_> {
    /// As the map has it; nothing if there is no storage behind it.
    pub fn mount(self, machine: &dyn Machine) -> Option<Mount> {
        let Found { path, source, fs_type, read_only } = self;
        if PSEUDO.contains(&fs_type) {
            return None;
        }
        let product =
            SITE.iter().find(|(known, _)| *known == fs_type).map(|(_, product)| (*product).to_owned());
        let space = machine.space(&path);
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

/// Blanks and the like are written as octal numbers: `\040`.
pub fn unescaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|digits| digits.iter().all(|c| (b'0'..=b'7').contains(c)));
        match digits.filter(|_| *first == b'\\') {
            Some(digits) => {
                let value = digits.iter().fold(0_u32, |value, digit| value * 8 + u32::from(digit - b'0'));
                bytes.push((value & 0xff) as u8);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
