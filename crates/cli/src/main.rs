//! **Purpose.** The `fourscore` command; everything it does is in the library of this crate, so
//! that man pages and completions are made from the same definition.

#![forbid(unsafe_code)]

use std::process::ExitCode;

/// Many threads allocate small pieces that live long (cached metadata) or shortly (names); the
/// C library's allocator asks the kernel for each page of a thread's heap and serialises them.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    fourscore_cli::main(std::env::args_os())
}
