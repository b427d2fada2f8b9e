//! The operations that the kernel may ask for.

macro_rules! opcodes {
    ($($name:ident = $number:literal;)*) => {
        /// An operation, under the kernel's number.
        #[allow(missing_docs, reason = "the names are the kernel's")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum Opcode { $($name = $number),* }

        /// Positions in [`Opcode::ALL`].
        enum Position { $($name),* }

        impl Opcode {
            /// Every operation, by number.
            pub const ALL: &[Opcode] = &[$(Opcode::$name),*];

            /// Returns the operation with this number, if there is one.
            #[must_use]
            pub fn from_number(number: u32) -> Option<Opcode> {
                match number { $($number => Some(Opcode::$name),)* _ => None }
            }

            /// Returns its name, as statistics and messages show it.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Opcode::$name => stringify!($name)),* }
            }

            /// Returns its position in [`Opcode::ALL`].
            #[must_use]
            pub fn index(self) -> usize {
                match self { $(Opcode::$name => Position::$name as usize),* }
            }
        }
    };
}

opcodes! {
    Lookup = 1;
    Forget = 2;
    GetAttr = 3;
    SetAttr = 4;
    ReadLink = 5;
    Symlink = 6;
    MkNod = 8;
    MkDir = 9;
    Unlink = 10;
    RmDir = 11;
    Rename = 12;
    Link = 13;
    Open = 14;
    Read = 15;
    Write = 16;
    StatFs = 17;
    Release = 18;
    FSync = 20;
    SetXattr = 21;
    GetXattr = 22;
    ListXattr = 23;
    RemoveXattr = 24;
    Flush = 25;
    Init = 26;
    OpenDir = 27;
    ReadDir = 28;
    ReleaseDir = 29;
    FSyncDir = 30;
    GetLk = 31;
    SetLk = 32;
    SetLkW = 33;
    Access = 34;
    Create = 35;
    Interrupt = 36;
    BMap = 37;
    Destroy = 38;
    IoCtl = 39;
    Poll = 40;
    NotifyReply = 41;
    BatchForget = 42;
    FAllocate = 43;
    ReadDirPlus = 44;
    Rename2 = 45;
    LSeek = 46;
    CopyFileRange = 47;
    SetupMapping = 48;
    RemoveMapping = 49;
    SyncFs = 50;
    TmpFile = 51;
    StatX = 52;
    CopyFileRange64 = 53;
}

impl Opcode {
    /// Returns whether the kernel waits for an answer.
    #[must_use]
    pub fn expects_reply(self) -> bool {
        !matches!(self, Opcode::Forget | Opcode::BatchForget | Opcode::Interrupt | Opcode::NotifyReply)
    }

    /// Returns whether the thread that it comes from stands still until it is answered, whatever it asked for before.
    #[must_use]
    pub fn is_waited_for(self) -> bool {
        use Opcode::{Access, Create, GetAttr, GetXattr, IoCtl, Link, ListXattr, Lookup, MkDir, MkNod, Open};
        use Opcode::{
            OpenDir, ReadDir, ReadDirPlus, ReadLink, Rename, Rename2, RmDir, SetAttr, Symlink, Unlink,
        };
        // Not READ, WRITE and the like: by asynchronous I/O a thread has several of those under way.
        let looks = matches!(
            self,
            Access | GetAttr | GetXattr | ListXattr | Lookup | ReadDir | ReadDirPlus | ReadLink
        );
        let makes =
            matches!(self, Create | Link | MkDir | MkNod | Rename | Rename2 | RmDir | Symlink | Unlink);
        looks || makes || matches!(self, IoCtl | Open | OpenDir | SetAttr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_operations_are_one_to_one() {
        for (index, &op) in Opcode::ALL.iter().enumerate() {
            assert_eq!(op.index(), index);
            assert_eq!(Opcode::from_number(op as u32), Some(op), "{}", op.name());
        }
        assert_eq!((0..4096).filter_map(Opcode::from_number).count(), Opcode::ALL.len());
        assert_eq!(Opcode::from_number(7), None);
        assert_eq!(Opcode::ReadDirPlus as u32, 44);
    }
}
