//! **Purpose.** Rules about what only some crates or files may do: share memory between threads,
//! use `unsafe`, and call an operating system.

use super::finding::Finding;
use super::source::{Source, has_word};
use super::tokens::{starts_with, tokens, without_tests};

/// The crates that may contain `unsafe`, each block with a SAFETY comment (clippy sees to that).
const UNSAFE_CRATES: &[&str] = &["sync", "block"];

/// Single files of other crates that may contain it. The root of such a crate denies it, because a
/// module cannot allow what its crate forbids.
const UNSAFE_FILES: &[&str] = &[
    "crates/fuse/src/anchor.rs",
    "crates/fuse/src/clone_device.rs",
    "crates/fuse/src/ring.rs",
    "crates/fuse/tests/sandbox.rs",
];

/// Names that only the crate `sync` may use: all of `std::thread`, except for functions that share
/// nothing.
const SYNC_NAMES: &[&str] = &[
    "std::sync",
    "core::sync",
    "alloc::sync",
    "std::thread",
    "parking_lot",
    "crossbeam",
    "crossbeam_utils",
    "crossbeam_epoch",
    "crossbeam_channel",
    "arc_swap",
    "seize",
];

/// The crates that build for other systems than Linux.
const PORTABLE_CRATES: &[&str] = &[
    "sync", "ondisk", "cache", "block", "journal", "mballoc", "fs", "check",
];

/// The files of these crates that may choose by the operating system and call it, by the beginning
/// of their paths. Only tests compile the last one.
const HOST_FILES: &[&str] = &[
    "crates/sync/src/host",
    "crates/block/src/host",
    "crates/block/src/positioned",
    "crates/fs/src/mount/host",
    "crates/ondisk/src/oracle.rs",
];

/// What names an operating system or its calls.
const HOST_NAMES: &[&[&str]] = &[
    &["std", "::", "os"],
    &["rustix"],
    &["libc"],
    &["io_uring"],
    &["target_os"],
    &["target_family"],
    &["(", "unix"],
    &["(", "windows"],
];

/// Examples of programs that use the library, as users write them.
const USERS_PROGRAMS: &[&str] = &["crates/cli/examples/", "crates/fs/examples/"];

/// The functions of `std::thread` that every crate may use.
const HARMLESS_THREAD_FUNCTIONS: &[&str] =
    &["sleep", "available_parallelism", "panicking", "current"];

/// `sync-door`: only the crate `sync` names locks, atomics, threads or their crates. The shuttle
/// and counting builds would not see others. xtask is not part of these builds, but needs no
/// exception.
pub(super) fn sync_door(source: &Source, found: &mut Vec<Finding>) {
    let is_users_program = USERS_PROGRAMS
        .iter()
        .any(|dir| source.path.starts_with(dir));
    if source.crate_folder() == "sync" || is_users_program {
        return;
    }
    for (index, line) in source.code.iter().enumerate() {
        for name in SYNC_NAMES {
            if has_word(line, name) && !is_harmless(line, name) {
                found.push(Finding::new(
                    "sync-door",
                    index + 1,
                    format_args!("{name} is named (take it from fourscore_sync)"),
                ));
            }
        }
        if let Some(name) = grouped_import(&source.code, index) {
            found.push(Finding::new(
                "sync-door",
                index + 1,
                format_args!("std::{name} is imported (take it from fourscore_sync)"),
            ));
        }
    }
}

fn is_harmless(line: &str, name: &str) -> bool {
    name == "std::thread"
        && line.match_indices(name).all(|(at, _)| {
            let rest = &line[at + name.len()..];
            HARMLESS_THREAD_FUNCTIONS.iter().any(|function| {
                rest.strip_prefix("::")
                    .is_some_and(|r| r.starts_with(function))
            })
        })
}

/// `sync` or `thread` at the first level of a `use std::{..}` that begins at a line.
fn grouped_import(code: &[String], index: usize) -> Option<&'static str> {
    let line = code.get(index)?.trim_start();
    let line = line.strip_prefix("pub ").unwrap_or(line);
    if !["use std::{", "use core::{"]
        .iter()
        .any(|start| line.starts_with(start))
    {
        return None;
    }
    let mut depth = 0;
    for line in code.iter().skip(index) {
        let mut outer = String::new();
        for c in line.chars() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                c if depth <= 1 => outer.push(c),
                _ => {}
            }
        }
        let banned = ["sync", "thread"]
            .into_iter()
            .find(|name| has_word(&outer, name));
        if banned.is_some() {
            return banned;
        }
        if line.contains(';') {
            break;
        }
    }
    None
}

/// `forbid-unsafe`: the root of every crate forbids unsafe code, and no file contains `unsafe`,
/// except in the crates that exist for it.
pub(super) fn forbid_unsafe(source: &Source, found: &mut Vec<Finding>) {
    if UNSAFE_CRATES.contains(&source.crate_folder())
        || UNSAFE_FILES.contains(&source.path.as_str())
    {
        return;
    }
    let own = format!("crates/{}/", source.crate_folder());
    let wanted = match UNSAFE_FILES.iter().any(|file| file.starts_with(&own)) {
        true => "#![deny(unsafe_code)]",
        false => "#![forbid(unsafe_code)]",
    };
    let is_root = ["src/lib.rs", "src/main.rs"]
        .iter()
        .any(|root| source.path.ends_with(root));
    if is_root && !source.code.iter().any(|line| line.contains(wanted)) {
        found.push(Finding::new(
            "forbid-unsafe",
            1,
            format_args!("the crate's root does not forbid unsafe code (add {wanted})"),
        ));
    }
    for (index, line) in source.code.iter().enumerate() {
        if has_word(line, "unsafe") {
            found.push(Finding::new(
                "forbid-unsafe",
                index + 1,
                "unsafe outside of the crates sync and block",
            ));
        }
    }
}

/// `host-door`: in the crates that build for other systems than Linux, only few files name an
/// operating system or its calls, so that there is one place to look at for each. Tests need Linux.
pub(super) fn host_door(source: &Source, found: &mut Vec<Finding>) {
    let is_door = HOST_FILES.iter().any(|file| source.path.starts_with(file));
    let is_test = source.path.ends_with("tests.rs") || source.path.contains("/tests/");
    let is_portable = PORTABLE_CRATES.contains(&source.crate_folder());
    if !is_portable || !source.in_src() || is_door || is_test {
        return;
    }
    let tokens = without_tests(&tokens(source));
    for (at, token) in tokens.iter().enumerate() {
        let name = HOST_NAMES
            .iter()
            .find(|name| starts_with(&tokens[at..], name));
        if let Some(name) = name {
            found.push(Finding::new(
                "host-door",
                token.line,
                format_args!(
                    "{} outside of the module host (macOS and Windows do without it)",
                    name.concat()
                ),
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::findings_of;
    use super::*;

    #[test]
    fn sync_door_sees_paths_imports_and_groups() {
        let lines = |text: &str| findings_of(sync_door, "crates/fs/src/a.rs", text);
        assert_eq!(lines("use std::sync::Arc;\n"), [1]);
        assert_eq!(
            lines("\nlet a = core::sync::atomic::AtomicU8::new(0);\n"),
            [2]
        );
        assert_eq!(lines("std::thread::spawn(|| ());\n"), [1]);
        assert_eq!(lines("use parking_lot::Mutex;\n"), [1]);
        assert_eq!(lines("use std::{\n    io,\n    sync::Arc,\n};\n"), [1]);
        assert_eq!(lines("use std::{fmt, thread};\n"), [1]);
        assert_eq!(lines("use crossbeam_utils::CachePadded;\n"), [1]);
    }

    #[test]
    fn sync_door_leaves_the_rest_alone() {
        let lines = |path: &str, text: &str| findings_of(sync_door, path, text);
        let path = "crates/fs/src/a.rs";
        assert!(lines("crates/sync/src/a.rs", "use std::sync::Arc;\n").is_empty());
        assert!(lines(path, "// std::sync::Arc\nlet a = \"parking_lot\";\n").is_empty());
        assert!(lines(path, "std::thread::sleep(pause);\n").is_empty());
        assert!(lines(path, "use std::{fmt, io::{self, sync_x}};\n").is_empty());
        assert!(lines(path, "use fourscore_sync::thread;\n").is_empty());
    }

    #[test]
    fn host_door_sees_calls_and_conditions() {
        let lines = |text: &str| findings_of(host_door, "crates/fs/src/a.rs", text);
        assert_eq!(lines("use std::os::fd::AsFd;\n"), [1]);
        assert_eq!(lines("\nlet a = rustix::fs::fstat(b)?;\n"), [2]);
        assert_eq!(lines("#[cfg(target_os = \"linux\")]\nmod a;\n"), [1]);
        assert_eq!(lines("#[cfg(unix)]\nmod a;\n"), [1]);
        assert_eq!(lines("#[cfg_attr(windows, allow(x))]\nmod a;\n"), [1]);
    }

    #[test]
    fn host_door_leaves_the_rest_alone() {
        let lines = |path: &str, text: &str| findings_of(host_door, path, text);
        let text = "use rustix::fs;\n";
        for path in [
            "crates/cli/src/a.rs",
            "crates/block/src/host/linux/file.rs",
            "crates/block/src/positioned.rs",
            "crates/fs/src/a/tests.rs",
            "crates/fs/tests/a.rs",
        ] {
            assert!(lines(path, text).is_empty(), "{path}");
        }
        let path = "crates/fs/src/a.rs";
        assert!(lines(path, "for pair in a.windows(2) {}\n// rustix\n").is_empty());
        assert!(lines(path, "#[cfg(test)]\nmod tests {\n use rustix::fs;\n}\n").is_empty());
        assert!(lines(path, "use std::ffi::OsStr;\nlet libc_errno = 1;\n").is_empty());
    }

    #[test]
    fn forbid_unsafe_wants_the_attribute_and_no_unsafe() {
        let lines = |path: &str, text: &str| findings_of(forbid_unsafe, path, text);
        assert_eq!(lines("crates/fs/src/lib.rs", "pub mod a;\n"), [1]);
        assert!(lines("crates/fs/src/lib.rs", "#![forbid(unsafe_code)]\n").is_empty());
        assert_eq!(
            lines("crates/fs/src/a.rs", "\nlet a = unsafe { b() };\n"),
            [2]
        );
        assert!(lines("crates/block/src/lib.rs", "unsafe { b() }\n").is_empty());
        assert!(lines("crates/fuse/src/clone_device.rs", "unsafe { b() }\n").is_empty());
        assert!(lines("crates/fuse/src/lib.rs", "#![deny(unsafe_code)]\n").is_empty());
        assert_eq!(lines("crates/fuse/src/lib.rs", "\n").len(), 1);
        assert_eq!(lines("crates/fuse/src/a.rs", "unsafe { b() }\n").len(), 1);
        assert!(lines("crates/fs/src/a.rs", "// unsafe\n").is_empty());
    }
}
