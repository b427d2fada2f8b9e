//! What comes from sockets.

#![no_main]

#[path = "../decoders.rs"]
mod decoders;
#[path = "../mutate.rs"]
mod mutate;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    decoders::frame(bytes, mutate::crc32c);
    decoders::message(bytes);
    decoders::map(bytes);
    decoders::link(bytes);
});
