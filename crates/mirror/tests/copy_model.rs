//! A copy of files that change meanwhile, against a model: in the end both sides have the same.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use bivouac_mirror::{CopyPlan, FileState};
use proptest::prelude::*;

type Files = BTreeMap<u8, Vec<u8>>;

/// A primary with its replica, and the copy that is under way.
struct World {
    primary: Files,
    replica: Files,
    plan: CopyPlan<u8>,
    /// How much of the file that is being copied has been.
    copied: usize,
}

impl World {
    fn new(files: Files) -> World {
        let plan = CopyPlan::of(files.keys().copied());
        World { primary: files, replica: Files::new(), plan, copied: 0 }
    }

    fn is_sent(&self, file: u8) -> bool {
        self.plan.state(&file) != FileState::Waiting
    }

    fn write(&mut self, file: u8, at: usize, byte: u8) {
        let is_sent = self.is_sent(file);
        let put = |files: &mut Files| {
            let content = files.entry(file).or_default();
            content.resize(content.len().max(at + 1), 0);
            content[at] = byte;
        };
        put(&mut self.primary);
        if is_sent {
            put(&mut self.replica);
        }
    }

    fn cut(&mut self, file: u8, len: usize) {
        let is_sent = self.is_sent(file);
        if let Some(content) = self.primary.get_mut(&file) {
            content.resize(len, 0);
            if is_sent {
                self.replica.get_mut(&file).expect("a copied file is there").resize(len, 0);
            }
        }
    }

    fn remove(&mut self, file: u8) {
        self.primary.remove(&file);
        self.replica.remove(&file);
        self.plan.remove(&file);
    }

    fn rename(&mut self, from: u8, to: u8) {
        if from == to {
            return;
        }
        let Some(content) = self.primary.remove(&from) else { return };
        self.primary.insert(to, content);
        if let Some(content) = self.replica.remove(&from) {
            self.replica.insert(to, content);
        }
        self.plan.rename(&from, &to);
    }

    /// The next step of the copy; false once it is over.
    fn copy(&mut self) -> bool {
        let copying = (0..=u8::MAX).find(|file| self.plan.state(file) == FileState::Copying);
        let Some(file) = copying else {
            let Some(file) = self.plan.next().copied() else { return false };
            assert!(self.plan.begin(&file));
            // What an abandoned copy may have left.
            self.replica.insert(file, vec![0; self.primary[&file].len()]);
            self.copied = 0;
            return true;
        };
        let (from, to) = (&self.primary[&file], self.replica.get_mut(&file).expect("it was begun"));
        match from.get(self.copied) {
            Some(byte) => to[self.copied] = *byte,
            None => self.plan.finish(&file),
        }
        self.copied += 1;
        true
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn in_the_end_both_have_the_same(
        files in proptest::collection::btree_map(0u8..6, proptest::collection::vec(any::<u8>(), 0..6), 0..6),
        steps in proptest::collection::vec((0u8..8, 0u8..6, 0u8..6, any::<u8>()), 0..80),
    ) {
        let mut world = World::new(files);
        for (what, file, other, byte) in steps {
            match what {
                0 | 1 => world.write(file, usize::from(other), byte),
                2 => world.cut(file, usize::from(other)),
                3 => world.remove(file),
                4 => world.rename(file, other),
                _ => { world.copy(); }
            }
        }
        while world.copy() {}
        prop_assert!(world.plan.is_over());
        prop_assert_eq!(world.replica, world.primary);
    }
}
