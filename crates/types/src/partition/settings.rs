//! All settings of a partition, and how they are written.

use std::fmt;
use std::str::FromStr;

use super::rule::stripe;
use super::{
    Contract, FsyncPolicy, Laminate, MasterHash, MirrorDeletes, Pin, ReadPolicy, Rule, Source, VolumeKind,
    WritePolicy,
};
use crate::limits::{PARTITION_RULES_MAX, STRIPE_DEFAULT};
use crate::units::{exact_size, parse_size};
use crate::{Errno, FsError, FsResult, Placement};

/// The keys, with what their values look like.
pub const KEYS: &[(&str, &str)] = &[
    ("stripe", "SIZE"),
    ("width", "N"),
    ("placement", "striped|local|hashed"),
    ("master-hash", "xxh3|byte-sum"),
    ("volumes", "any|memory|disk"),
    ("contract", "coherent|session|strict"),
    ("laminate", "on-request|on-chmod"),
    ("source", "URL|none"),
    ("read", "on-demand|at-start|on-open"),
    ("write", WritePolicy::FORMS),
    ("fsync", "volumes|source"),
    ("mirror-deletes", "no|yes"),
    ("capacity", "SIZE|none"),
    ("rule", "'GLOB: read=… write=… stripe=… pin=… contract=…'|none"),
];

/// The value that takes a setting away which need not be there.
const NONE: &str = "none";

/// Settings of a partition. Their text form is a line `key=value` per setting; rules, in their order, are lines of
/// their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionSettings {
    /// Bytes per stripe of new files.
    pub stripe: u32,
    /// Targets that a new file uses; 0 is all of the partition.
    pub width: u16,
    /// Choice of the targets of a new file.
    pub placement: Placement,
    /// Choice of its first target.
    pub master_hash: MasterHash,
    /// Volumes that are targets. Fixed when the partition is made.
    pub volumes: VolumeKind,
    /// Contract between readers and writers.
    pub contract: Contract,
    /// Requests that laminate its files.
    pub laminate: Laminate,
    /// The partition's source.
    pub source: Option<Source>,
    /// When content comes from there.
    pub read: ReadPolicy,
    /// When content goes there.
    pub write: WritePolicy,
    /// Effect of `fsync`.
    pub fsync: FsyncPolicy,
    /// The choice whether deletions here are repeated there.
    pub mirror_deletes: MirrorDeletes,
    /// Most bytes on its targets together.
    pub capacity: Option<u64>,
    /// Exceptions; the first that names a file and says something about a matter decides on it.
    pub rules: Vec<Rule>,
}

/// A setting that cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingError {
    /// There is no such key; with the one that may have been meant.
    Unknown {
        /// The key.
        key: String,
        /// The most similar one, if one is similar.
        meant: Option<&'static str>,
    },
    /// The value is not possible: a sentence.
    Value(String),
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = || KEYS.iter().map(|(key, _)| *key).collect::<Vec<_>>().join(", ");
        match self {
            SettingError::Unknown { key, meant: Some(meant) } => {
                write!(f, "'{key}' is no setting of partitions; '{meant}' is")
            }
            SettingError::Unknown { key, meant: None } => {
                write!(f, "'{key}' is no setting of partitions; there are {}", keys())
            }
            SettingError::Value(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for SettingError {}

impl Default for PartitionSettings {
    fn default() -> PartitionSettings {
        PartitionSettings {
            stripe: STRIPE_DEFAULT,
            width: 0,
            placement: Placement::Striped,
            master_hash: MasterHash::default(),
            volumes: VolumeKind::default(),
            contract: Contract::default(),
            laminate: Laminate::default(),
            source: None,
            read: ReadPolicy::default(),
            write: WritePolicy::default(),
            fsync: FsyncPolicy::default(),
            mirror_deletes: MirrorDeletes::default(),
            capacity: None,
            rules: Vec::new(),
        }
    }
}

impl PartitionSettings {
    /// Returns whether what is deleted in the partition is to be deleted at its source.
    #[must_use]
    pub fn mirrors_deletes(&self) -> bool {
        self.source.is_some() && self.mirror_deletes == MirrorDeletes::Yes
    }

    /// Refuses changes in front of a link whose key permits none, unless they are to stay here.
    ///
    /// # Errors
    /// `EROFS`.
    pub fn check_changes_permitted(&self) -> FsResult<()> {
        let is_refused = |source: &Source| source.is_read_only() && self.write != WritePolicy::Never;
        match self.source.as_ref().is_some_and(is_refused) {
            true => Err(FsError::with(Errno::EROFS, "the key of the link permits no changes")),
            false => Ok(()),
        }
    }

    /// Like [`PartitionSettings::check_changes_permitted`], for new files and content, which a link that is being
    /// removed refuses as well; names can be removed there.
    ///
    /// # Errors
    /// `EROFS`.
    pub fn check_content_permitted(&self) -> FsResult<()> {
        match self.source.as_ref().is_some_and(Source::is_detached) {
            true => Err(FsError::with(Errno::EROFS, "the link is being removed")),
            false => self.check_changes_permitted(),
        }
    }

    /// Changes one setting; a rule is added to those that are there, and `none` takes all away.
    ///
    /// # Errors
    /// A key that is none; a value that is not possible.
    pub fn assign(&mut self, key: &str, value: &str) -> Result<(), SettingError> {
        let outcome = match key {
            "stripe" => stripe(value).map(|stripe| self.stripe = stripe),
            "width" => width(value).map(|width| self.width = width),
            "placement" => value.parse().map(|placement| self.placement = placement),
            "master-hash" => value.parse().map(|hash| self.master_hash = hash),
            "volumes" => value.parse().map(|kind| self.volumes = kind),
            "contract" => contract(value).map(|contract| self.contract = contract),
            "laminate" => value.parse().map(|laminate| self.laminate = laminate),
            "source" => unless_none(value, str::parse).map(|source| self.source = source),
            "read" => value.parse().map(|policy| self.read = policy),
            "write" => value.parse().map(|policy| self.write = policy),
            "fsync" => value.parse().map(|policy| self.fsync = policy),
            "mirror-deletes" => value.parse().map(|mirror| self.mirror_deletes = mirror),
            "capacity" => unless_none(value, capacity).map(|capacity| self.capacity = capacity),
            "rule" if value == NONE => {
                self.rules.clear();
                Ok(())
            }
            "rule" => value.parse().and_then(|rule| self.add_rule(rule)),
            _ => return Err(SettingError::Unknown { key: key.to_owned(), meant: similar(key) }),
        };
        outcome.map_err(SettingError::Value)
    }

    /// Returns the key and value of every setting; those that are not there are left out.
    #[must_use]
    pub fn pairs(&self) -> Vec<(&'static str, String)> {
        let always = [
            ("stripe", exact_size(u64::from(self.stripe))),
            ("width", self.width.to_string()),
            ("placement", self.placement.to_string()),
            ("master-hash", self.master_hash.to_string()),
            ("volumes", self.volumes.to_string()),
            ("contract", self.contract.to_string()),
            ("read", self.read.to_string()),
            ("write", self.write.to_string()),
            ("fsync", self.fsync.to_string()),
        ];
        let mut pairs = Vec::from(always);
        if self.laminate != Laminate::default() {
            pairs.push(("laminate", self.laminate.to_string()));
        }
        if self.mirror_deletes != MirrorDeletes::default() {
            pairs.push(("mirror-deletes", self.mirror_deletes.to_string()));
        }
        pairs.extend(self.source.iter().map(|source| ("source", source.to_string())));
        pairs.extend(self.capacity.iter().map(|bytes| ("capacity", exact_size(*bytes))));
        pairs.extend(self.rules.iter().map(|rule| ("rule", rule.to_string())));
        pairs
    }

    /// Returns the stripe size of a new file with this name, in bytes.
    #[must_use]
    pub fn stripe_of(&self, name: &[u8]) -> u32 {
        self.by_rule(name, |rule| rule.stripe).unwrap_or(self.stripe)
    }

    /// Returns true if a new file of this name is pinned.
    #[must_use]
    pub fn pins(&self, name: &[u8]) -> bool {
        self.by_rule(name, |rule| rule.pin) == Some(Pin::Yes)
    }

    /// Returns the rule that gives a new file of this name a contract.
    #[must_use]
    pub fn contract_rule(&self, name: &[u8]) -> Option<&Rule> {
        let is_named = |rule: &&Rule| !rule.glob.is_of_paths() && rule.glob.matches(name);
        self.rules.iter().filter(|rule| rule.contract.is_some()).find(is_named)
    }

    /// Returns the rule that gives a new directory of this name a contract, right below the partition's directory.
    #[must_use]
    pub fn directory_contract_rule(&self, name: &[u8]) -> Option<&Rule> {
        self.rules.iter().filter(|rule| rule.contract.is_some()).find(|rule| rule.glob.matches_below(name))
    }

    /// Returns when content of a file is brought from site storage; `path` is relative to the partition's root.
    #[must_use]
    pub fn read_of(&self, path: &[u8]) -> ReadPolicy {
        self.by_rule(path, |rule| rule.read).unwrap_or(self.read)
    }

    /// Returns when content of a file goes to site storage; `path` is relative to the partition's root.
    #[must_use]
    pub fn write_of(&self, path: &[u8]) -> WritePolicy {
        self.by_rule(path, |rule| rule.write).unwrap_or(self.write)
    }

    fn by_rule<T>(&self, path: &[u8], says: impl Fn(&Rule) -> Option<T>) -> Option<T> {
        self.rules.iter().filter(|rule| rule.glob.matches(path)).find_map(says)
    }

    fn add_rule(&mut self, rule: Rule) -> Result<(), String> {
        if self.rules.len() >= PARTITION_RULES_MAX {
            return Err(format!("more than {PARTITION_RULES_MAX} rules"));
        }
        self.rules.push(rule);
        Ok(())
    }
}

impl fmt::Display for PartitionSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pairs().iter().try_for_each(|(key, value)| writeln!(f, "{key}={value}"))
    }
}

impl FromStr for PartitionSettings {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<PartitionSettings, SettingError> {
        let mut settings = PartitionSettings::default();
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let shape = || SettingError::Value(format!("'{line}' is not of the form key=value"));
            let (key, value) = line.split_once('=').ok_or_else(shape)?;
            settings.assign(key.trim(), value.trim())?;
        }
        Ok(settings)
    }
}

fn unless_none<T>(value: &str, read: impl Fn(&str) -> Result<T, String>) -> Result<Option<T>, String> {
    if value == NONE { Ok(None) } else { read(value).map(Some) }
}

/// Returns a contract that files can be written under.
pub(super) fn contract(value: &str) -> Result<Contract, String> {
    match value.parse()? {
        Contract::Laminated => Err(
            "new files cannot be laminated, or nothing could be written to them; bivouac laminate does it later"
                .into(),
        ),
        contract => Ok(contract),
    }
}

fn width(value: &str) -> Result<u16, String> {
    value.parse().map_err(|_| format!("width '{value}' is not a number of targets; 0 is all of them"))
}

fn capacity(value: &str) -> Result<u64, String> {
    match parse_size(value)? {
        0 => Err(format!("capacity 0 holds nothing; write '{NONE}' for no limit")),
        bytes => Ok(bytes),
    }
}

/// Returns the key that may have been meant.
fn similar(key: &str) -> Option<&'static str> {
    crate::words::similar(key, KEYS.iter().map(|(known, _)| *known))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Glob;
    use proptest::prelude::*;

    #[test]
    fn settings_are_read_and_written() {
        let text = "stripe=64k\nwidth = 2\nplacement=hashed\nsource=/data\nwrite=delayed=5s/1m\ncapacity=10GB\n\
                    rule=*.chk: write=through\nrule=*: read=on-open stripe=4k\n";
        let settings: PartitionSettings = text.parse().unwrap();
        assert_eq!((settings.stripe, settings.width, settings.capacity), (65_536, 2, Some(10_000_000_000)));
        assert_eq!(settings.write, WritePolicy::Delayed { age_ms: 5000, bytes: 1 << 20 });
        assert_eq!(settings.to_string().parse(), Ok(settings));
        assert_eq!("".parse(), Ok(PartitionSettings::default()));
    }

    #[test]
    fn the_first_rule_that_says_something_decides() {
        let text = "rule=*.chk: write=through\nrule=*: read=on-open stripe=4k\nrule=a.*: write=on-close";
        let settings: PartitionSettings = text.parse().unwrap();
        assert_eq!((settings.stripe_of(b"a.chk"), settings.stripe_of(b"b")), (4096, 4096));
        assert_eq!(settings.write_of(b"d/a.chk"), WritePolicy::Through);
        assert_eq!(settings.write_of(b"d/a.dat"), WritePolicy::OnClose);
        assert_eq!(settings.write_of(b"b"), WritePolicy::OnFlush);
        assert_eq!(settings.read_of(b"b"), ReadPolicy::OnOpen);
    }

    #[test]
    fn the_first_rule_with_a_contract_that_names_a_file_gives_it() {
        let text = "rule=*.db: stripe=4k\nrule=*.db: contract=strict\nrule=ckpt*/**: contract=session\n\
                    rule=a.*: contract=coherent\nrule=*.x/**: write=through";
        let settings: PartitionSettings = text.parse().unwrap();
        let of_file = |name: &str| settings.contract_rule(name.as_bytes()).and_then(|rule| rule.contract);
        assert_eq!(
            [of_file("a.db"), of_file("a.x"), of_file("ckpt1")],
            [Some(Contract::Strict), Some(Contract::Coherent), None]
        );
        let of_dir =
            |name: &str| settings.directory_contract_rule(name.as_bytes()).and_then(|rule| rule.contract);
        assert_eq!([of_dir("ckpt1"), of_dir("x.db"), of_dir("a.x")], [Some(Contract::Session), None, None]);
    }

    #[test]
    fn every_key_can_be_set_and_what_is_wrong_is_named() {
        let mut settings = PartitionSettings::default();
        for (key, _) in KEYS {
            assert!(
                !matches!(settings.assign(key, "\u{1}"), Ok(()) | Err(SettingError::Unknown { .. })),
                "{key}"
            );
        }
        let mut refusal = |key, value| settings.assign(key, value).unwrap_err().to_string();
        assert_eq!(refusal("strip", "4k"), "'strip' is no setting of partitions; 'stripe' is");
        assert!(refusal("colour", "red").contains("there are stripe, width"));
        assert!(refusal("width", "-1").contains("'-1' is not a number of targets"));
        assert!(refusal("capacity", "0").contains("holds nothing"));
        assert!(refusal("placement", "far").contains("placement 'far' is none of striped, local, hashed"));
        assert!(refusal("contract", "loose").contains("coherent, session"));
        assert!(refusal("contract", "laminated").contains("new files cannot be laminated"));
        assert!(refusal("rule", "*.nc: contract=laminated").contains("new files cannot be laminated"));
        assert!(refusal("laminate", "always").contains("laminate 'always' is none of on-request, on-chmod"));
    }

    fn any_rule() -> impl Strategy<Value = Rule> {
        let read = proptest::option::of(proptest::sample::select(ReadPolicy::ALL));
        let stripe = proptest::option::of((1u32..1000).prop_map(|pages| pages * 4096));
        let glob = proptest::sample::select(&["*", "*.h5", "chk_[0-9]*", "{a,b}?:c"][..]);
        let pin = proptest::option::of(proptest::sample::select(Pin::ALL));
        let writable = vec![Contract::Coherent, Contract::Session, Contract::Strict];
        let contract = proptest::option::of(proptest::sample::select(writable));
        (glob, read, any_write(), stripe, pin, contract).prop_map(
            |(glob, read, write, stripe, pin, contract)| Rule {
                glob: glob.parse::<Glob>().unwrap(),
                read,
                write: Some(write),
                stripe,
                pin,
                contract,
            },
        )
    }

    fn any_write() -> impl Strategy<Value = WritePolicy> {
        prop_oneof![
            Just(WritePolicy::Through),
            Just(WritePolicy::OnClose),
            Just(WritePolicy::OnFlush),
            (1..u64::MAX, 1..u64::MAX).prop_map(|(age_ms, bytes)| WritePolicy::Delayed { age_ms, bytes }),
        ]
    }

    fn any_settings() -> impl Strategy<Value = PartitionSettings> {
        let first = (1u32..1000, any::<u16>(), 0..3usize, 0..2usize, 0..3usize, 0..3usize);
        let write = prop_oneof![any_write(), Just(WritePolicy::Never)];
        let second = (0..3usize, write, proptest::option::of(1..u64::MAX), any::<bool>());
        (first, second, proptest::collection::vec(any_rule(), 0..5)).prop_map(|(first, second, rules)| {
            let placements = [Placement::Striped, Placement::Local, Placement::Hashed];
            PartitionSettings {
                stripe: first.0 * 4096,
                width: first.1,
                placement: placements[first.2],
                master_hash: MasterHash::ALL[first.3],
                volumes: VolumeKind::ALL[first.4],
                contract: Contract::ALL[first.5],
                laminate: Laminate::ALL[second.0 % 2],
                source: second.3.then(|| "s3://b/p?region=r".parse().unwrap()),
                read: ReadPolicy::ALL[second.0],
                write: second.1,
                fsync: FsyncPolicy::ALL[second.0 % 2],
                mirror_deletes: MirrorDeletes::ALL[second.0 % 2],
                capacity: second.2,
                rules,
            }
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(settings in any_settings()) {
            prop_assert_eq!(settings.to_string().parse(), Ok(settings));
        }

        #[test]
        fn any_text_is_read_or_refused(key in 0..KEYS.len(), value in "\\PC{0,40}", text in "\\PC{0,80}") {
            let mut settings = PartitionSettings::default();
            if settings.assign(KEYS[key].0, &value).is_ok() {
                prop_assert_eq!(settings.to_string().parse(), Ok(settings));
            }
            let _ = text.parse::<PartitionSettings>();
        }
    }
}
