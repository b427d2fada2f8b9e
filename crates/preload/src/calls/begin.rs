//! The beginning and the end of the program.
#![allow(unsafe_code, reason = "the linker is told what to call")]

use std::panic::catch_unwind;

use crate::{child, hidden, pending, process, quiet, real, report, serving, settings};

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

extern "C" fn begin() {
    // Without this library the program runs as well.
    let _ = catch_unwind(|| {
        // What goes wrong is told by return values; the program's standard error is the program's.
        std::panic::set_hook(Box::new(|_| {}));
        if !settings::read() {
            return;
        }
        process::watch(child::renew);
        // `quick_exit` calls nothing else; what is registered first is called last.
        // SAFETY: the function is there as long as the library, which is never unloaded.
        unsafe { real::__cxa_at_quick_exit(end, std::ptr::null_mut()) };
        hidden::choose();
        quiet::look_at_all();
        bivouac_client::keep_sockets(hidden::keep);
        report::begin();
        serving::open();
    });
}

/// Ends what the program has, which ends by `exit` or `_exit`.
pub extern "C" fn end() {
    let _ = catch_unwind(|| {
        pending::end();
        report::tell();
    });
}
