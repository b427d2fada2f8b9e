//! The plan of a copy that is made while its files change.

use std::collections::BTreeSet;

/// State of a file while volumes are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileState {
    /// Not begun: changes of its content need not be sent, since its copy will have them.
    Waiting,
    /// Being copied: changes are sent between the parts of the copy.
    Copying,
    /// Copied, or created since: changes are sent.
    Copied,
}

/// Files that are to be copied. A file is known by its name; changes of names are told as they are made.
#[derive(Clone, Debug)]
pub struct CopyPlan<K> {
    waiting: BTreeSet<K>,
    copying: Option<K>,
}

impl<K> Default for CopyPlan<K> {
    fn default() -> CopyPlan<K> {
        CopyPlan { waiting: BTreeSet::new(), copying: None }
    }
}

impl<K: Ord + Clone> CopyPlan<K> {
    /// Returns the plan of a copy of these files.
    pub fn of(files: impl IntoIterator<Item = K>) -> CopyPlan<K> {
        CopyPlan { waiting: files.into_iter().collect(), copying: None }
    }

    /// Returns the state of a file.
    #[must_use]
    pub fn state(&self, file: &K) -> FileState {
        match () {
            () if self.copying.as_ref() == Some(file) => FileState::Copying,
            () if self.waiting.contains(file) => FileState::Waiting,
            () => FileState::Copied,
        }
    }

    /// Returns the file that is to be copied next; `None` if none waits.
    #[must_use]
    pub fn next(&self) -> Option<&K> {
        self.waiting.first()
    }

    /// Begins with a file, if it still waits. Nobody may be about to change it.
    pub fn begin(&mut self, file: &K) -> bool {
        assert!(self.copying.is_none(), "one file is copied at a time");
        self.copying = self.waiting.take(file);
        self.copying.is_some()
    }

    /// Ends the copy of a file, which is copied or is no more.
    pub fn finish(&mut self, file: &K) {
        self.copying.take_if(|copying| copying == file);
    }

    /// Copies the file again, from its beginning, later.
    pub fn postpone(&mut self, file: &K) {
        if let Some(file) = self.copying.take_if(|copying| copying == file) {
            self.waiting.insert(file);
        }
    }

    /// Notes that a file was given another name, also at the replica, where there is nothing yet of one that waits.
    pub fn rename(&mut self, from: &K, to: &K) {
        let state = self.state(from);
        self.remove(from);
        self.remove(to);
        // Half a copy goes on under no other name.
        if state != FileState::Copied {
            self.waiting.insert(to.clone());
        }
    }

    /// Notes that a file was removed, also at the replica.
    pub fn remove(&mut self, file: &K) {
        self.finish(file);
        self.waiting.remove(file);
    }

    /// Returns whether everything is copied.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.waiting.is_empty() && self.copying.is_none()
    }

    /// Returns the number of files that are still to be copied.
    #[must_use]
    pub fn left(&self) -> usize {
        self.waiting.len() + usize::from(self.copying.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_copied_once_whatever_its_name() {
        let mut plan = CopyPlan::of(["a", "b", "c"]);
        assert_eq!(plan.next(), Some(&"a"));
        assert!(!plan.begin(&"x"));
        assert!(plan.begin(&"a"));
        assert_eq!(
            [plan.state(&"a"), plan.state(&"b"), plan.state(&"x")],
            [FileState::Copying, FileState::Waiting, FileState::Copied]
        );
        plan.rename(&"a", &"z");
        assert_eq!(
            (plan.state(&"a"), plan.state(&"z"), plan.left()),
            (FileState::Copied, FileState::Waiting, 3)
        );
        plan.rename(&"x", &"b");
        assert_eq!((plan.state(&"b"), plan.left()), (FileState::Copied, 2));
        plan.remove(&"c");
        assert!(plan.begin(&"z"));
        plan.postpone(&"y");
        plan.postpone(&"z");
        assert_eq!((plan.state(&"z"), plan.begin(&"z")), (FileState::Waiting, true));
        plan.finish(&"z");
        assert!(plan.is_over());
    }
}
