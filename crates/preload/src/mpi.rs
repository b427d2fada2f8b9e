//! MPI-IO of the program: `libbivouac_mpiio` is loaded when a process whose MPI has one installed first asks for a
//! file.
//!
//! The dynamic linker gives a program the first function of a name, and what is loaded later is never first. So this
//! library has all functions of MPI's files ([`crate::calls`]), and each goes on to where it belongs.
#![allow(unsafe_code, reason = "libraries and their functions are found by name")]

use std::ffi::{CStr, CString, OsStr, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::settings;

/// Directory of libraries for MPI, relative to that of this one.
const PLACE: &str = "../lib/bivouac";
const PREFIX: &str = "libbivouac_mpiio-";

/// Returns the function for the program's call: of `libbivouac_mpiio`, or the MPI library's own; `None` if no library
/// has it.
pub fn function(name: &CStr) -> Option<*mut c_void> {
    static OURS: OnceLock<Option<Handle>> = OnceLock::new();
    OURS.get_or_init(load)
        .as_ref()
        .and_then(|ours| ours.function(name))
        .or_else(|| Handle::NEXT.function(name))
        .or_else(|| {
            loaded().iter().filter_map(|path| Handle::of_loaded(path)).find_map(|mpi| mpi.function(name))
        })
}

/// Returns the library for the MPI that is there; `None` if none is installed, or the program brought it.
fn load() -> Option<Handle> {
    let loaded = loaded();
    if !settings::takes_mpi() || loaded.iter().any(|path| name_of(path).starts_with(PREFIX.as_bytes())) {
        return None;
    }
    let place = place()?;
    let library = loaded.iter().map(|path| library_for(&place, path)).find(|library| library.exists())?;
    Handle::open(&CString::new(library.into_os_string().into_encoded_bytes()).ok()?, 0)
}

/// Returns the path of the library for an MPI. Its name ends with that of MPI's library, including the version, since
/// versions differ in their interfaces.
fn library_for(place: &Path, mpi: &CStr) -> PathBuf {
    let mut name = PREFIX.as_bytes().to_vec();
    name.extend(name_of(mpi));
    place.join(OsStr::from_bytes(&name))
}

fn name_of(path: &CStr) -> &[u8] {
    path.to_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

/// Returns the directory of libraries for MPI.
fn place() -> Option<PathBuf> {
    // SAFETY: zeroes are valid for numbers and pointers.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the address is a function's of this library, and the linker fills in what it has of it.
    let known = unsafe { libc::dladdr(loaded as *const c_void, &raw mut found) };
    if known == 0 || found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: it is the path of this library, which is never unloaded.
    let path = unsafe { CStr::from_ptr(found.dli_fname) };
    Some(Path::new(OsStr::from_bytes(path.to_bytes())).parent()?.join(PLACE))
}

/// Returns the paths of the libraries of the process that may be an MPI's, or ours for one.
fn loaded() -> Vec<CString> {
    unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, found: *mut c_void) -> c_int {
        // SAFETY: the linker gives what it has of a library, and what `loaded` gave it.
        let (info, found) = unsafe { (&*info, &mut *found.cast::<Vec<CString>>()) };
        if !info.dlpi_name.is_null() {
            // SAFETY: the linker holds its lock, so the library stays until this returns.
            let path = unsafe { CStr::from_ptr(info.dlpi_name) };
            if name_of(path).starts_with(b"libmpi") || name_of(path).starts_with(PREFIX.as_bytes()) {
                found.push(path.to_owned());
            }
        }
        0
    }
    let mut found: Vec<CString> = Vec::new();
    // SAFETY: the function has the type that is asked for, and what it is given outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast()) };
    found
}

/// A library, which stays loaded.
struct Handle(*mut c_void);

// SAFETY: the linker's functions may be called by any thread.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    /// Libraries after this one.
    const NEXT: Handle = Handle(libc::RTLD_NEXT);

    fn open(path: &CStr, more: c_int) -> Option<Handle> {
        // SAFETY: the path ends with a NUL; libraries of an MPI and ours for them do nothing when they are loaded.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL | more) };
        (!handle.is_null()).then_some(Handle(handle))
    }

    /// Returns the handle of a library that a part of the process has loaded for itself.
    fn of_loaded(path: &CStr) -> Option<Handle> {
        Handle::open(path, libc::RTLD_NOLOAD)
    }

    fn function(&self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: the name ends with a NUL, and the handle is the linker's.
        let found = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        (!found.is_null()).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_of_an_mpi_has_a_library_of_its_own() {
        let place = Path::new("/opt/lib/bivouac");
        assert_eq!(
            library_for(place, c"/usr/lib/x86_64-linux-gnu/libmpi.so.40"),
            place.join("libbivouac_mpiio-libmpi.so.40")
        );
        assert_eq!(library_for(place, c"libmpich.so.12"), place.join("libbivouac_mpiio-libmpich.so.12"));
    }

    #[test]
    fn what_no_library_has_is_not_found() {
        assert!(loaded().is_empty(), "these tests have no MPI");
        assert!(function(c"MPI_File_open").is_none());
    }
}
