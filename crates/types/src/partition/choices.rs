//! Settings that are one word out of a few.

words! {
    /// The guarantee that a reader has about writers; see docs/semantics/contracts.md.
    #[derive(Default)]
    Contract ("contract") {
        /// Every later read sees all of a finished write.
        #[default]
        Coherent = "coherent",
        /// Visible after close or fsync; writers write behind and readers read ahead.
        Session = "session",
        /// Coherent, and a call is seen whole or not at all, however many stripes and nodes it touches.
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
        /// Volumes on a file system in memory.
        Memory = "memory",
        /// Volumes on a file system on a device.
        Disk = "disk",
    }
    /// The hash that decides on the first target of a file.
    #[derive(Default)]
    MasterHash ("master hash") {
        /// XXH3 of its inode number: even, whatever the names are.
        #[default]
        Xxh3 = "xxh3",
        /// The sum of the bytes of its name, modulo the targets: published, found without asking anybody, and uneven
        /// for numbered names.
        ByteSum = "byte-sum",
    }
    /// The meaning of `fsync` in front of site storage.
    #[derive(Default)]
    FsyncPolicy ("fsync policy") {
        /// Durable on the volumes.
        #[default]
        Volumes = "volumes",
        /// At the source as well.
        Source = "source",
    }
    /// The choice whether deletions here are repeated at the source.
    #[derive(Default)]
    MirrorDeletes ("mirror-deletes") {
        /// Nothing is ever deleted there.
        #[default]
        No = "no",
        /// Deletions follow the write policy, if the source still has the version that was last seen.
        Yes = "yes",
    }
    /// The choice whether content stays here, however full the volumes are.
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
