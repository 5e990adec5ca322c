//! **Purpose.** The target `fast_commit` as a program for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fourscore_fuzz::targets::fast_commit::run(data));
