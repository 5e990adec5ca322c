//! **Purpose.** The `fourscore` command; everything it does is in the library of this crate, so
//! that man pages and completions are made from the same definition.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    fourscore_cli::main(std::env::args_os())
}
