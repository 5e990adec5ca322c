//! **Purpose.** The `fourscore` command. Its code is in the library of this crate, so that man
//! pages and completions are generated from the same definition.

#![forbid(unsafe_code)]

use std::process::ExitCode;

/// Many threads allocate small objects, some long-lived (cached metadata) and some short-lived
/// (names). The C library's allocator calls the kernel for each page of a thread's heap, which
/// serialises the threads.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    fourscore_cli::main(std::env::args_os())
}
