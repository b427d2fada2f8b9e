//! The functions of MPI's files. Each goes to `libbivouac_mpiio`, or to the MPI library.
//!
//! All of them take at most six arguments, numbers and pointers, which a 64-bit machine passes in registers: so they
//! are passed on as they came, without knowing how many of them mean anything, and so is what is returned.
#![allow(unsafe_code, reason = "functions of other libraries are called by pointer")]

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::mpi;

/// Returned where no library has the function, so that nobody can have linked it: not MPI_SUCCESS.
const MISSING: usize = 16;

type Function = unsafe extern "C-unwind" fn(usize, usize, usize, usize, usize, usize) -> usize;

/// Calls the function of this name; where it is, is looked for once.
unsafe fn pass_on(place: &AtomicPtr<c_void>, name: &[u8], [a, b, c, d, e, f]: [usize; 6]) -> usize {
    let mut function = place.load(Ordering::Relaxed);
    if function.is_null() {
        let found = CStr::from_bytes_with_nul(name).ok().and_then(mpi::function);
        let Some(found) = found else { return MISSING };
        place.store(found, Ordering::Relaxed);
        function = found;
    }
    // SAFETY: a function of C, which finds its arguments in registers where the caller put them.
    let function = unsafe { std::mem::transmute::<*mut c_void, Function>(function) };
    // SAFETY: as the caller says.
    unsafe { function(a, b, c, d, e, f) }
}

macro_rules! files {
    ($($name:ident)*) => {$(
        const _: () = {
            #[unsafe(export_name = stringify!($name))]
            unsafe extern "C-unwind" fn call(a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> usize {
                static PLACE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
                // SAFETY: as the caller says.
                unsafe { pass_on(&PLACE, concat!(stringify!($name), "\0").as_bytes(), [a, b, c, d, e, f]) }
            }

            /// Fortran of some MPIs, and tools, call these.
            #[unsafe(export_name = concat!("P", stringify!($name)))]
            unsafe extern "C-unwind" fn profiled(a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> usize {
                static PLACE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
                // SAFETY: as the caller says.
                unsafe { pass_on(&PLACE, concat!("P", stringify!($name), "\0").as_bytes(), [a, b, c, d, e, f]) }
            }
        };
    )*};
}

files! {
    MPI_File_c2f MPI_File_call_errhandler MPI_File_close MPI_File_create_errhandler MPI_File_delete
    MPI_File_f2c MPI_File_fromint MPI_File_get_amode MPI_File_get_atomicity MPI_File_get_byte_offset
    MPI_File_get_errhandler MPI_File_get_group MPI_File_get_info MPI_File_get_position
    MPI_File_get_position_shared MPI_File_get_size MPI_File_get_type_extent
    MPI_File_get_type_extent_c MPI_File_get_view MPI_File_iread MPI_File_iread_all
    MPI_File_iread_all_c MPI_File_iread_at MPI_File_iread_at_all MPI_File_iread_at_all_c
    MPI_File_iread_at_c MPI_File_iread_c MPI_File_iread_shared MPI_File_iread_shared_c
    MPI_File_iwrite MPI_File_iwrite_all MPI_File_iwrite_all_c MPI_File_iwrite_at
    MPI_File_iwrite_at_all MPI_File_iwrite_at_all_c MPI_File_iwrite_at_c MPI_File_iwrite_c
    MPI_File_iwrite_shared MPI_File_iwrite_shared_c MPI_File_open MPI_File_preallocate MPI_File_read
    MPI_File_read_all MPI_File_read_all_begin MPI_File_read_all_begin_c MPI_File_read_all_c
    MPI_File_read_all_end MPI_File_read_at MPI_File_read_at_all MPI_File_read_at_all_begin
    MPI_File_read_at_all_begin_c MPI_File_read_at_all_c MPI_File_read_at_all_end MPI_File_read_at_c
    MPI_File_read_c MPI_File_read_ordered MPI_File_read_ordered_begin MPI_File_read_ordered_begin_c
    MPI_File_read_ordered_c MPI_File_read_ordered_end MPI_File_read_shared MPI_File_read_shared_c
    MPI_File_seek MPI_File_seek_shared MPI_File_set_atomicity MPI_File_set_errhandler
    MPI_File_set_info MPI_File_set_size MPI_File_set_view MPI_File_sync MPI_File_toint
    MPI_File_write MPI_File_write_all MPI_File_write_all_begin MPI_File_write_all_begin_c
    MPI_File_write_all_c MPI_File_write_all_end MPI_File_write_at MPI_File_write_at_all
    MPI_File_write_at_all_begin MPI_File_write_at_all_begin_c MPI_File_write_at_all_c
    MPI_File_write_at_all_end MPI_File_write_at_c MPI_File_write_c MPI_File_write_ordered
    MPI_File_write_ordered_begin MPI_File_write_ordered_begin_c MPI_File_write_ordered_c
    MPI_File_write_ordered_end MPI_File_write_shared MPI_File_write_shared_c
}
