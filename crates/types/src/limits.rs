//! Every limit of the product, by name. Relations between limits are proven at compile time.

/// Bits of an inode number that hold the slot.
pub const INO_SLOT_BITS: u32 = 12;
/// Bits of an inode number that hold the allocating node.
pub const INO_ALLOCATOR_BITS: u32 = 12;
/// Bits of an inode number that hold the counter: 10^12 files per node.
pub const INO_COUNTER_BITS: u32 = 40;
/// Counters below this are for inodes with a fixed meaning (the root is 1).
pub const INO_COUNTER_FIRST: u64 = 16;

/// Bits of the number of an open that count within one process of a client; above them is the process.
pub const OPEN_COUNTER_BITS: u32 = 40;

/// Slots of a formation, unless chosen otherwise. A power of two.
pub const SLOTS_DEFAULT: u16 = 1024;
/// Most slots a formation can have.
pub const SLOTS_MAX: u16 = 1 << INO_SLOT_BITS;
/// Most nodes a formation can have.
pub const NODES_MAX: usize = 1 << INO_ALLOCATOR_BITS;
/// Most targets (volumes of all nodes) a formation can have.
pub const TARGETS_MAX: usize = 16_384;

/// Longest name of a directory entry, in bytes.
pub const NAME_LEN_MAX: usize = 255;
/// Entries at which a directory that several clients use spreads over all nodes, unless chosen otherwise.
pub const SPREAD_AT_DEFAULT: u64 = 1024;
/// The same of one that one client alone uses: not more than its names can be [known](NAMES_KNOWN_MAX).
pub const SPREAD_ALONE_AT_DEFAULT: u64 = 16_384;
/// Most entries that a directory can have when it spreads: they move by one commit at its home. One that grew beyond
/// this while a node was away stays where it is.
pub const SPREAD_ENTRIES_MAX: u64 = 200_000;
/// Most bytes of entries in one message while a directory spreads.
pub const SHARD_BYTES_MAX: usize = 1 << 15;

/// Most spread directories that a client remembers.
pub const SPREAD_KNOWN_MAX: usize = 1 << 16;

/// Most names of a directory that a client knows without asking.
pub const NAMES_KNOWN_MAX: usize = 16_384;
/// Of how many directories.
pub const WHOLE_DIRS_MAX: usize = 256;

/// Longest target of a symbolic link, in bytes.
pub const SYMLINK_LEN_MAX: usize = 4095;
/// Longest value of an extended attribute, in bytes.
pub const XATTR_VALUE_LEN_MAX: usize = 65_536;
/// Most bytes that the names of one file's extended attributes may take together.
pub const XATTR_LIST_LEN_MAX: usize = 65_536;
/// Most names (hard links) of one file.
pub const LINKS_MAX: u32 = 1_000_000;
/// Largest file, in bytes: what a signed 64-bit offset can name.
pub const FILE_SIZE_MAX: u64 = i64::MAX as u64;

/// Smallest stripe, in bytes.
pub const STRIPE_MIN: u32 = 4096;
/// Largest stripe, in bytes.
pub const STRIPE_MAX: u32 = 1 << 30;
/// Stripe size unless chosen otherwise, in bytes.
pub const STRIPE_DEFAULT: u32 = 1 << 20;
/// The same of a formation over several hosts: a request of the kernel, 1 MiB at most, goes to several of them at the
/// same time, and none of their links waits for another.
pub const STRIPE_DEFAULT_OVER_HOSTS: u32 = 256 << 10;

/// Most partitions that a formation can have in its life: their numbers have 16 bits.
pub const PARTITIONS_MAX: u16 = u16::MAX;
/// Most bytes of a partition's settings, as text.
pub const PARTITION_TEXT_MAX: usize = 16_384;
/// Most rules of a partition.
pub const PARTITION_RULES_MAX: usize = 64;
/// Default age at which delayed content is flushed, in milliseconds.
pub const DELAYED_MS_DEFAULT: u64 = 30_000;
/// Default limit of delayed content, in bytes.
pub const DELAYED_BYTES_DEFAULT: u64 = 1 << 30;

/// Bytes of pages that a client under the session contract has at most, unless chosen otherwise.
pub const PAGE_POOL_DEFAULT: u64 = 64 << 20;
/// Least and most that can be chosen, in bytes. The least is a few large messages.
pub const PAGE_POOL_MIN: u64 = 4 << 20;
/// See [`PAGE_POOL_MIN`].
pub const PAGE_POOL_MAX: u64 = 64 << 30;

/// Length of a subfile's header, in bytes; data without checksums starts behind it.
pub const SUBFILE_HEADER_LEN: u64 = 4096;
/// Bytes of a subfile's data that have a checksum of their own: a page, so that what is mostly read and written is
/// whole blocks.
pub const SUM_BLOCK: u64 = 4096;
/// Most stretches of wrong bytes that a node names in its status.
pub const WRONG_LISTED_MAX: usize = 100;
/// Offset of data in a subfile with checksums. These are in front of it, and take space on the volume as data is
/// written: 4 bytes for each block.
pub const SUMMED_DATA_AT: u64 = 4 << 30;
/// Bytes of a subfile that are compared in one go by `scrub`, with the subfile locked.
pub const SCRUB_PIECE: u64 = 1 << 20;
/// Most bytes that one request of `scrub` compares, so that its answer comes soon.
pub const SCRUB_STEP_MAX: u64 = 64 << 20;

/// Length of a frame's header on the wire, in bytes.
pub const FRAME_HEADER_LEN: usize = 64;
/// Longest encoded body of a frame, in bytes: an extended attribute and then some.
pub const FRAME_BODY_MAX: usize = 1 << 18;
/// Most bytes of one answer about a host, which are a body.
pub const HOST_ANSWER_MAX: u32 = 1 << 17;
/// Longest raw payload of a frame, in bytes.
pub const FRAME_PAYLOAD_MAX: usize = 1 << 23;
/// Longest content of a record of an encrypted connection, in bytes: a piece that stays in a processor's cache.
pub const RECORD_LEN_MAX: usize = 1 << 16;
/// Longest body of a frame before its sender has proven that it knows the secret, in bytes.
pub const HANDSHAKE_BODY_MAX: usize = 256;
/// Most connections that have not yet proven themselves; the oldest is closed for a newer one.
pub const HANDSHAKES_MAX: usize = 256;
/// Time a connection has to prove itself, in milliseconds.
pub const HANDSHAKE_MS_MAX: u64 = 10_000;

/// Most bytes of one read or write that a client sends to one target in one message.
pub const TRANSFER_MAX: usize = 1 << 22;
/// Most places that a client reads or writes in one message to one target.
pub const LIST_EXTENTS_MAX: usize = 16_384;
/// Most bytes of directory entries in one answer.
pub const READDIR_BYTES_MAX: usize = 1 << 16;

/// Most inodes that one client of a check watches at a node.
pub const WATCHED_MAX: usize = 16_384;
/// Most clients that watch inodes at a node; the one that came first has to give way to the next.
pub const WATCHERS_MAX: usize = 4;
/// Most bytes of records in one answer to a check.
pub const LIST_BYTES_MAX: usize = 1 << 16;

/// Name of a mount's threads that may wait in the kernel until the mount has answered programs. Those of a killed
/// daemon stay until its successor answers, and do nothing else.
pub const NOTIFY_THREAD: &str = "mount-notify";

/// Length of a lease, in milliseconds.
pub const LEASE_MS: u64 = 100;
/// Part of a lease that the client is not granted: the kernel counts time in ticks of up to 10 ms.
pub const LEASE_MARGIN_MS: u64 = 25;
/// Most clients whose leases are recalled by a message for a change; of more, the end of their leases is awaited.
pub const INVALIDATIONS_MAX: usize = 16;
/// The part of the time since the last change by somebody else that a lease may last: changes are kept waiting for no
/// more than that part of the time.
pub const LEASE_PART: u64 = 10;
/// Shortest lease that is worth having, in milliseconds.
pub const LEASE_MS_MIN: u64 = LEASE_MARGIN_MS + 15;
/// Time without changes after which leases have their full length again, in milliseconds.
pub const LEASE_QUIET_MS: u64 = LEASE_MS * LEASE_PART;
/// Waits of changes at a node for one client, within [`CONTENTION_MS`], after which it gets no leases.
pub const CONTENTIONS_MAX: u32 = 4;
/// Period of that count, and time without leases after it, in milliseconds.
pub const CONTENTION_MS: u64 = 3_000;

/// Time for which the kernel may keep the attributes of a spread directory, also while others change it, in
/// milliseconds.
pub const SPREAD_ATTR_MS: u64 = LEASE_MS - LEASE_MARGIN_MS;
/// Most channels of one client: as many changes may be under way, and their outcomes be remembered in each slot.
pub const CLIENT_CHANNELS_MAX: u16 = 1024;
/// Most opens that one node keeps in memory; further ones are refused.
pub const OPENS_MAX: u64 = 1 << 20;
/// Most clients with open files that one node remembers; those of further ones are refused.
pub const CLIENTS_MAX: usize = 1 << 16;

/// Most changes of one node that wait for other nodes; further ones are refused. Each has a channel of its own.
pub const UNFINISHED_MAX: usize = 1 << 15;

/// Default wait of a client for a node that does not answer, in milliseconds.
pub const WAIT_MS_DEFAULT: u64 = 30_000;

/// After how long a node that does not answer is dead, unless chosen otherwise; on one machine its supervisor knows.
pub const DEAD_AFTER_MS_DEFAULT: u64 = 5_000;
/// Shortest time that can be chosen: below, a busy machine would look dead, in milliseconds.
pub const DEAD_AFTER_MS_MIN: u64 = 500;

/// Most ranges of one file that may be locked.
pub const LOCKS_PER_FILE_MAX: usize = 1 << 16;
/// Most ranges that one client may have locked at one node.
pub const LOCKS_PER_CLIENT_MAX: usize = 1 << 18;
/// Most requests for locks of one file that may wait.
pub const LOCK_WAITS_PER_FILE_MAX: usize = 1 << 14;
/// Time for which a request for a lock that is free lets earlier ones go first, in milliseconds.
pub const LOCK_TURN_MS: u64 = 1_000;
/// Time that a request for a lock waits before its client checks for a deadlock, in milliseconds.
pub const LOCK_LOOK_MS: u64 = 10;
/// Interval at which a client asks again for a lock that it waits for, in milliseconds: grants are announced at once,
/// but the message may be lost.
pub const LOCK_ASK_MS: u64 = 1_000;
/// After how long a request for a lock that its client does not ask for again is dropped, in milliseconds.
pub const LOCK_SILENCE_MS: u64 = 30_000;
/// Wait of a check for a deadlock for one node, in milliseconds.
pub const LOCK_LOOK_WAIT_MS: u64 = 2_000;
/// Most owners of locks that one check for a deadlock follows.
pub const LOCK_OWNERS_FOLLOWED_MAX: usize = 4_096;
/// Most items in one message about locks.
pub const LOCKS_PER_MESSAGE_MAX: usize = 2_048;

/// Most files, and processes, whose use a node reports one by one; those it drops are summed up.
pub const USES_FILES_MAX: usize = 256;
/// See [`USES_FILES_MAX`].
pub const USES_PROCESSES_MAX: usize = 256;
/// Most processes of one file that are told apart.
pub const USE_PROCESSES_MAX: usize = 16;
/// Most bytes of a program's name; the kernel keeps no more.
pub const PROGRAM_LEN_MAX: usize = 15;
/// Most uses of files in one message.
pub const USES_PER_MESSAGE_MAX: usize = 256;

/// Most processes that access subfiles of one node directly at a time.
pub const DIRECT_SESSIONS_MAX: u32 = 1023;
/// Most subfiles of one node that one process accesses directly at a time.
pub const DIRECT_GATES_MAX: u32 = 1024;
/// Most grants of direct access of one node: each keeps a subfile open.
pub const DIRECT_GRANTS_MAX: usize = 4096;
/// Most sizes of files that one node lends to processes at a time.
pub const DIRECT_SIZES_MAX: usize = 4096;
/// Space that a process which writes directly is allowed ahead of its requests, in bytes.
pub const DIRECT_AHEAD_BYTES: u64 = 64 << 20;
/// Grants of a subfile that end within [`DIRECT_CALM_MS`] because accesses of several processes met, before that takes
/// longer than messages would.
pub const DIRECT_TURNS_MAX: u32 = 8;
/// Time for which a subfile is served by its daemon alone after that, in milliseconds; also the time of a refusal.
pub const DIRECT_CALM_MS: u64 = 50;
/// Wait for a process that was stopped in the middle of an access, in milliseconds.
pub const DIRECT_DRAIN_MS: u64 = 5_000;

/// Most bytes of content of a file that is made by one request. With its name and attributes it has to fit into an
/// ioctl, whose number has 14 bits for that.
pub const PUT_LEN_MAX: usize = 15 << 10;

const _: () = assert!(INO_SLOT_BITS + INO_ALLOCATOR_BITS + INO_COUNTER_BITS == 64);
// Slots, nodes and positions of targets are numbers of 16 bits.
const _: () = assert!(INO_SLOT_BITS <= 16 && INO_ALLOCATOR_BITS <= 16 && TARGETS_MAX <= 1 << 16);
// Channels are 16 bits; those of requests that are being served come on top.
const _: () = assert!(UNFINISHED_MAX <= 1 << 15);
const _: () = assert!(SLOTS_DEFAULT.is_power_of_two() && SLOTS_DEFAULT <= SLOTS_MAX);
// A setxattr request carries name and value in its body.
const _: () = assert!(XATTR_VALUE_LEN_MAX + NAME_LEN_MAX + 1024 <= FRAME_BODY_MAX);
const _: () = assert!(XATTR_LIST_LEN_MAX + 1024 <= FRAME_BODY_MAX);
const _: () = assert!(READDIR_BYTES_MAX * 2 <= FRAME_BODY_MAX);
const _: () = assert!(HOST_ANSWER_MAX as usize + 1024 <= FRAME_BODY_MAX);
const _: () = assert!(NAMES_KNOWN_MAX * 8 + 1024 <= FRAME_BODY_MAX);
const _: () = assert!(SPREAD_ALONE_AT_DEFAULT <= NAMES_KNOWN_MAX as u64);
const _: () = assert!(SHARD_BYTES_MAX + 1024 <= FRAME_BODY_MAX);
// Letter, directory, hash and name, and what stands before them in the log, of each entry; a commit has up to 64 MiB.
const _: () = assert!(SPREAD_ENTRIES_MAX * (NAME_LEN_MAX as u64 + 64) <= 1 << 26);
// A watch travels in one body.
const _: () = assert!(WATCHED_MAX * 8 + 1024 <= FRAME_BODY_MAX);
// The longest record is added to a page that is nearly full.
const _: () = assert!(LIST_BYTES_MAX + XATTR_VALUE_LEN_MAX + 1024 <= FRAME_BODY_MAX);
// Two ticks at the coarsest, and what is left is worth having.
const _: () = assert!(LEASE_MARGIN_MS >= 20 && LEASE_MARGIN_MS < LEASE_MS_MIN && LEASE_MS_MIN <= LEASE_MS);
// Two patterns of 132 bytes, and what belongs to them; and the timeline.
const _: () = assert!(
    USES_FILES_MAX * (320 + 8 * USE_PROCESSES_MAX) + USES_PROCESSES_MAX * 336 + 4096 <= FRAME_BODY_MAX
);
const _: () = assert!(USES_PER_MESSAGE_MAX * 336 + (1 << 17) + 1024 <= FRAME_BODY_MAX);
// No item of such a message is longer than 100 bytes.
const _: () = assert!(LOCKS_PER_MESSAGE_MAX * 100 + 1024 <= FRAME_BODY_MAX);
// Who waits for its turn asks again when it has waited long enough.
const _: () =
    assert!(LOCK_LOOK_MS < LOCK_ASK_MS && LOCK_TURN_MS <= LOCK_ASK_MS && LOCK_ASK_MS < LOCK_SILENCE_MS / 10);
const _: () = assert!(TRANSFER_MAX <= FRAME_PAYLOAD_MAX);
// A partition travels in one body, with four bytes per target.
const _: () = assert!(TARGETS_MAX * 4 + PARTITION_TEXT_MAX + 1024 <= FRAME_BODY_MAX);
// Offset and length of each, and then some.
const _: () = assert!(LIST_EXTENTS_MAX * 12 + 1024 <= FRAME_BODY_MAX);
const _: () = assert!(STRIPE_MIN as u64 >= SUBFILE_HEADER_LEN);
// Blocks are pages of the local file, too.
const _: () = assert!(SUMMED_DATA_AT.is_multiple_of(SUM_BLOCK) && SUMMED_DATA_AT > SUBFILE_HEADER_LEN);
const _: () = assert!(SCRUB_PIECE.is_multiple_of(SUM_BLOCK) && SCRUB_STEP_MAX >= SCRUB_PIECE);
const _: () = assert!(STRIPE_MIN.is_power_of_two() && STRIPE_MAX.is_power_of_two());
const _: () = assert!(PUT_LEN_MAX + NAME_LEN_MAX + 64 < 1 << 14);
