//! **Purpose.** The target `check` as a program for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fourscore_fuzz::targets::check::run(data));
