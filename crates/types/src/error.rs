//! The one errno table, and the error that file-system operations return.

use std::fmt;
use std::io;

use crate::named;

macro_rules! errnos {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        /// An error number as Linux knows it. The only place where the numbers are written.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct Errno(i32);

        #[allow(missing_docs, reason = "the names are the kernel's")]
        impl Errno {
            $(pub const $name: Errno = Errno($code);)*

            /// Returns the constant's name, or `None` for a number that the table does not hold.
            #[must_use]
            pub fn name(self) -> Option<&'static str> {
                match self.0 { $($code => Some(stringify!($name)),)* _ => None }
            }

            fn text(self) -> &'static str {
                match self.0 { $($code => $text,)* _ => "unknown error" }
            }
        }
    };
}

errnos! {
    EPERM = 1, "operation not permitted";
    ENOENT = 2, "no such file or directory";
    ESRCH = 3, "no such process";
    EINTR = 4, "interrupted";
    EIO = 5, "input/output error";
    ENXIO = 6, "no such device or address";
    E2BIG = 7, "too much";
    ENOEXEC = 8, "not a program";
    EBADF = 9, "bad file descriptor";
    ECHILD = 10, "no such child";
    EAGAIN = 11, "try again";
    ENOMEM = 12, "out of memory";
    EACCES = 13, "permission denied";
    EFAULT = 14, "bad address";
    ENOTBLK = 15, "not a block device";
    EBUSY = 16, "busy";
    EEXIST = 17, "file exists";
    EXDEV = 18, "across file systems";
    ENODEV = 19, "no such device";
    ENOTDIR = 20, "not a directory";
    EISDIR = 21, "is a directory";
    EINVAL = 22, "invalid argument";
    ENFILE = 23, "too many open files on this machine";
    EMFILE = 24, "too many open files";
    ENOTTY = 25, "not a terminal";
    ETXTBSY = 26, "program is running";
    EFBIG = 27, "file too large";
    ENOSPC = 28, "no space left";
    ESPIPE = 29, "cannot be moved in";
    EROFS = 30, "read-only file system";
    EMLINK = 31, "too many links";
    EPIPE = 32, "nobody reads";
    EDOM = 33, "out of domain";
    ERANGE = 34, "result too large";
    EDEADLK = 35, "deadlock";
    ENAMETOOLONG = 36, "name too long";
    ENOLCK = 37, "no locks available";
    ENOSYS = 38, "not implemented";
    ENOTEMPTY = 39, "directory not empty";
    ELOOP = 40, "too many symbolic links";
    ENODATA = 61, "no such attribute";
    ETIME = 62, "timer expired";
    EREMOTE = 66, "on another node";
    EPROTO = 71, "protocol error";
    EBADMSG = 74, "bad message";
    EOVERFLOW = 75, "value too large";
    EILSEQ = 84, "invalid characters";
    ERESTART = 85, "to be begun again";
    ENOTSOCK = 88, "not a socket";
    EMSGSIZE = 90, "message too long";
    ENOPROTOOPT = 92, "no such option of the protocol";
    EPROTONOSUPPORT = 93, "protocol not supported";
    EOPNOTSUPP = 95, "not supported";
    EAFNOSUPPORT = 97, "address family not supported";
    EADDRINUSE = 98, "address already in use";
    EADDRNOTAVAIL = 99, "no address of this machine";
    ENETDOWN = 100, "network is down";
    ENETUNREACH = 101, "network unreachable";
    ENETRESET = 102, "network dropped the connection";
    ECONNABORTED = 103, "connection aborted";
    ECONNRESET = 104, "connection reset";
    ENOBUFS = 105, "no buffer space";
    EISCONN = 106, "connected already";
    ENOTCONN = 107, "not connected";
    ESHUTDOWN = 108, "connection shut down";
    ETIMEDOUT = 110, "timed out";
    ECONNREFUSED = 111, "connection refused";
    EHOSTDOWN = 112, "host is down";
    EHOSTUNREACH = 113, "no route to host";
    EALREADY = 114, "in progress already";
    EINPROGRESS = 115, "in progress";
    ESTALE = 116, "stale file handle";
    EUCLEAN = 117, "structure needs cleaning";
    EREMOTEIO = 121, "remote input/output error";
    EDQUOT = 122, "quota exceeded";
    ENOMEDIUM = 123, "no medium";
    ECANCELED = 125, "cancelled";
    ENOKEY = 126, "no key";
}

impl Errno {
    /// Returns the number, positive.
    #[must_use]
    pub fn code(self) -> i32 {
        self.0
    }

    /// Returns the error for a number from the kernel or the wire; anything not positive or absurd is `EIO`.
    #[must_use]
    pub fn from_code(code: i32) -> Errno {
        // The kernel's `MAX_ERRNO` is 4095.
        if (1..4096).contains(&code) { Errno(code) } else { Errno::EIO }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{} ({name})", self.text()),
            None => write!(f, "error {}", self.0),
        }
    }
}

/// Why a file-system operation failed: the errno for the program, a sentence for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FsError {
    errno: Errno,
    detail: Option<Box<str>>,
}

/// Result of a file-system operation.
pub type FsResult<T> = Result<T, FsError>;

impl FsError {
    /// Creates an error that needs no words.
    #[must_use]
    pub const fn new(errno: Errno) -> FsError {
        FsError { errno, detail: None }
    }

    /// Returns an error with object, cause and remedy.
    #[must_use]
    pub fn with(errno: Errno, detail: impl Into<String>) -> FsError {
        FsError { errno, detail: Some(named(&detail.into()).into()) }
    }

    /// Returns the error of a system call on `what`.
    #[must_use]
    pub fn from_io(error: &io::Error, what: &str) -> FsError {
        let errno = error.raw_os_error().map_or(Errno::EIO, Errno::from_code);
        FsError::with(errno, format!("{what}: {error}"))
    }

    /// Returns the error number for the program.
    #[must_use]
    pub fn errno(&self) -> Errno {
        self.errno
    }

    /// Returns the sentence for the log, if there is one.
    #[must_use]
    pub fn detail(&self) -> Option<&str> {
        self.detail.as_deref()
    }
}

impl From<Errno> for FsError {
    fn from(errno: Errno) -> FsError {
        FsError::new(errno)
    }
}

impl fmt::Display for FsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.detail {
            Some(detail) => f.write_str(detail),
            None => self.errno.fmt(f),
        }
    }
}

impl std::error::Error for FsError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_agrees_with_the_kernel() {
        for errno in [Errno::ENOENT, Errno::ENOTEMPTY, Errno::ENODATA, Errno::ESTALE, Errno::EDQUOT] {
            let kernel = io::Error::from_raw_os_error(errno.code());
            assert!(!kernel.to_string().is_empty());
            assert!(errno.name().is_some());
        }
        assert_eq!(
            io::Error::from_raw_os_error(Errno::ENOTEMPTY.code()).kind(),
            io::ErrorKind::DirectoryNotEmpty
        );
        assert_eq!(io::Error::from_raw_os_error(Errno::EDQUOT.code()).kind(), io::ErrorKind::QuotaExceeded);
    }

    #[test]
    fn numbers_from_outside_never_become_success() {
        assert_eq!(Errno::from_code(0), Errno::EIO);
        assert_eq!(Errno::from_code(-2), Errno::EIO);
        assert_eq!(Errno::from_code(28), Errno::ENOSPC);
    }
}
