//! What comes from volumes.

#![no_main]

#[path = "../decoders.rs"]
mod decoders;
#[path = "../mutate.rs"]
mod mutate;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    decoders::subfile(bytes, mutate::crc32c);
    decoders::log(bytes, mutate::crc32c);
});
