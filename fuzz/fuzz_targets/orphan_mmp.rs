//! **Purpose.** The target `orphan_mmp` as a program for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fourscore_fuzz::targets::orphan_mmp::run(data));
