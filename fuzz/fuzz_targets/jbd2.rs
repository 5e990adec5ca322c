//! **Purpose.** The target `jbd2` as a program for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fourscore_fuzz::targets::jbd2::run(data));
