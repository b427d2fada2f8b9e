//! Settings that are one word out of a few.

/// Defines an enumeration whose values are written as words.
macro_rules! words {
    ($($(#[$doc:meta])* $name:ident ($what:literal) { $($(#[$vdoc:meta])* $variant:ident = $word:literal),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$vdoc])* $variant),* }

        impl $name {
            /// All of them, the default first.
            pub const ALL: &[$name] = &[$($name::$variant),*];
            /// How they are written.
            pub const WORDS: &[&str] = &[$($word),*];

            /// How it is written.
            #[must_use]
            pub fn word(self) -> &'static str {
                match self { $($name::$variant => $word),* }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.word())
            }
        }

        impl std::str::FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<$name, String> {
                match text {
                    $($word => Ok($name::$variant),)*
                    _ => Err(format!("{} '{text}' is none of {}", $what, $name::WORDS.join(", "))),
                }
            }
        }
    )*};
}

words! {
    /// What a reader may expect of a writer; see docs/semantics.md.
    Contract ("contract") {
        /// What a finished write wrote, every later read sees.
        #[default]
        Coherent = "coherent",
        /// Visible after close or fsync; writers write behind and readers read ahead.
        Session = "session",
    }
    /// Which volumes of its nodes a partition uses.
    VolumeKind ("volumes") {
        /// All of them.
        #[default]
        Any = "any",
        /// Those on a file system in memory.
        Memory = "memory",
        /// Those on a file system on a device.
        Disk = "disk",
    }
    /// What decides on the first seat of a file.
    MasterHash ("master hash") {
        /// XXH3 of its inode number: even, whatever the names are.
        #[default]
        Xxh3 = "xxh3",
        /// The sum of the bytes of its name, modulo the seats: published, found without asking anybody, and uneven
        /// for numbered names.
        ByteSum = "byte-sum",
    }
    /// What `fsync` means in front of site storage.
    FsyncPolicy ("fsync policy") {
        /// Durable on the volumes.
        #[default]
        Volumes = "volumes",
        /// At the source as well.
        Source = "source",
    }
    /// Whether what is deleted here is deleted at the source.
    MirrorDeletes ("mirror-deletes") {
        /// Nothing is ever deleted there.
        #[default]
        No = "no",
        /// As the write policy says, if it is there what it was when it was last seen.
        Yes = "yes",
    }
    /// Whether content stays here, however full the volumes are.
    Pin ("pin") {
        /// It makes room.
        #[default]
        No = "no",
        /// It stays.
        Yes = "yes",
    }
    /// When content of site storage is brought to the nodes.
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
