//! Settings that are one word out of a few.

words! {
    /// What a reader may expect of a writer; see docs/semantics/contracts.md.
    #[derive(Default)]
    Contract ("contract") {
        /// What a finished write wrote, every later read sees.
        #[default]
        Coherent = "coherent",
        /// Visible after close or fsync; writers write behind and readers read ahead.
        Session = "session",
        /// As coherent, and a call is seen whole or not at all, however many stripes and nodes it touches.
        Strict = "strict",
        /// The content never changes, and so whoever reads may cache it. Of files only, and never that of a partition.
        Laminated = "laminated",
    }
    /// Lamination of a file when its last write permission is taken away.
    #[derive(Default)]
    Laminate ("laminate") {
        /// By `bivouac laminate`, or the contract as an attribute.
        #[default]
        OnRequest = "on-request",
        /// Also by `chmod a-w`.
        OnChmod = "on-chmod",
    }
    /// Which volumes of its nodes a partition uses.
    #[derive(Default)]
    VolumeKind ("volumes") {
        /// All of them.
        #[default]
        Any = "any",
        /// Those on a file system in memory.
        Memory = "memory",
        /// Those on a file system on a device.
        Disk = "disk",
    }
    /// What decides on the first target of a file.
    #[derive(Default)]
    MasterHash ("master hash") {
        /// XXH3 of its inode number: even, whatever the names are.
        #[default]
        Xxh3 = "xxh3",
        /// The sum of the bytes of its name, modulo the targets: published, found without asking anybody, and uneven
        /// for numbered names.
        ByteSum = "byte-sum",
    }
    /// What `fsync` means in front of site storage.
    #[derive(Default)]
    FsyncPolicy ("fsync policy") {
        /// Durable on the volumes.
        #[default]
        Volumes = "volumes",
        /// At the source as well.
        Source = "source",
    }
    /// Whether what is deleted here is deleted at the source.
    #[derive(Default)]
    MirrorDeletes ("mirror-deletes") {
        /// Nothing is ever deleted there.
        #[default]
        No = "no",
        /// As the write policy says, if it is there what it was when it was last seen.
        Yes = "yes",
    }
    /// Whether content stays here, however full the volumes are.
    #[derive(Default)]
    Pin ("pin") {
        /// It makes room.
        #[default]
        No = "no",
        /// It stays.
        Yes = "yes",
    }
    /// When content of site storage is brought to the nodes.
    #[derive(Default)]
    ReadPolicy ("read policy") {
        /// By stripes, when they are first read.
        #[default]
        OnDemand = "on-demand",
        /// All of it, when the partition is made or the formation starts.
        AtStart = "at-start",
        /// A whole file, when it is opened.
        OnOpen = "on-open",
    }
}
