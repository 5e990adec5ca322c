//! **Purpose.** Installs the programs that tests and demo use, and reports what this machine
//! supports.
//!
//! Packages of the system are installed only where that needs no password: as root, or through
//! `sudo` without one. Everywhere else the exact command is printed. Programs that no distribution
//! packages are built by `cargo install`, each in one version, so that every machine runs the same
//! tests.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Result, bail};

use crate::run::{cargo, find_program, on_ci, run as run_command};
use crate::workspace::Workspace;

/// A Debian package and how its presence is seen.
struct Package {
    name: &'static str,
    provides: Provides,
    used_for: &'static str,
}

enum Provides {
    Program(&'static str),
    File(&'static str),
    /// A file below the folder of some version.
    Version(&'static str, &'static str),
}

const PACKAGES: &[Package] = &[
    program(
        "e2fsprogs",
        "mke2fs",
        "images and oracles: mke2fs, e2fsck, debugfs, dumpe2fs",
    ),
    program(
        "mount",
        "losetup",
        "loop devices for the kernel's own mounts",
    ),
    program("fuse3", "fusermount3", "FUSE mounts without root"),
    program(
        "fuse2fs",
        "fuse2fs",
        "the user-space file system to compare with",
    ),
    program("acl", "setfacl", "access control lists in test trees"),
    program("attr", "setfattr", "extended attributes in test trees"),
    program(
        "xfsprogs",
        "xfs_io",
        "fallocate, punch hole and shutdown in test trees",
    ),
    program("fio", "fio", "workloads"),
    program("fsmark", "fs_mark", "workloads"),
    program(
        "fakeroot",
        "fakeroot",
        "image builders that do not run as root",
    ),
    program(
        "libarchive-tools",
        "bsdtar",
        "the other reader of tar archives and manifests",
    ),
    program("qemu-utils", "qemu-img", "the other reader of qcow2 images"),
    program("sqlite3", "sqlite3", "a database on a mount"),
    program(
        "chromium",
        "chromium",
        "pages of `fourscore lab`, rendered in its tests",
    ),
    program("git", "git", "a repository on a mount"),
    program(
        "stress-ng",
        "stress-ng",
        "all system calls at once on a mount",
    ),
    program("dbench", "dbench", "the load of a file server on a mount"),
    Package {
        name: "postgresql",
        provides: Provides::Version("/usr/lib/postgresql", "bin/postgres"),
        used_for: "a database server on a mount",
    },
    program("rocksdb-tools", "db_bench", "a store of keys on a mount"),
    program("zstd", "zstd", "compressed seeds and tar archives"),
    program("g++", "c++", "libFuzzer's run time"),
    Package {
        name: "libacl1-dev",
        provides: Provides::File("/usr/include/sys/acl.h"),
        used_for: "building pjdfstest",
    },
];

/// A program that cargo builds from the registry, of which one version is wanted.
struct Tool {
    name: &'static str,
    version: &'static str,
    used_for: &'static str,
}

const TOOLS: &[Tool] = &[
    Tool {
        name: "pjdfstest",
        version: "0.2.2",
        used_for: "conformance with POSIX, on a mount",
    },
    Tool {
        name: "fsx",
        version: "0.3.2",
        used_for: "file data compared with a model, on a mount",
    },
];

const fn program(name: &'static str, program: &'static str, used_for: &'static str) -> Package {
    Package {
        name,
        provides: Provides::Program(program),
        used_for,
    }
}

impl Package {
    fn is_present(&self) -> bool {
        match self.provides {
            Provides::Program(program) => find_program(program).is_some(),
            Provides::File(path) => Path::new(path).exists(),
            Provides::Version(folder, path) => std::fs::read_dir(folder).is_ok_and(|mut all| {
                all.any(|one| one.is_ok_and(|one| one.path().join(path).exists()))
            }),
        }
    }
}

impl Tool {
    /// The package and version for `cargo install`.
    fn pinned(&self) -> String {
        format!("{}@{}", self.name, self.version)
    }

    /// Whether the output of `cargo install --list` has it.
    fn is_listed(&self, listed: &str) -> bool {
        let line = format!("{} v{}:", self.name, self.version);
        listed.lines().any(|listed| listed == line)
    }
}

/// Installs what is missing where that is possible, and reports what the machine supports. On CI
/// anything that is still missing afterwards is an error; elsewhere the tests that need it report
/// that they were skipped.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    packages()?;
    tools(workspace)
}

/// As [`run`], without the programs that cargo builds.
fn packages() -> Result<()> {
    let missing = missing();
    if missing.is_empty() {
        println!(
            "setup: all {} system packages are installed",
            PACKAGES.len()
        );
    } else {
        for package in &missing {
            println!("setup: {} is missing ({})", package.name, package.used_for);
        }
        install(&missing)?;
    }
    for line in abilities() {
        println!("setup: {line}");
    }
    Ok(())
}

/// Installs those of the named packages that are missing, and nothing else. On a terminal it asks
/// first; elsewhere it says what it installs.
pub(crate) fn offer(names: &[&str]) -> Result<()> {
    let mut missing = missing();
    missing.retain(|package| names.contains(&package.name));
    let Some(first) = missing.first() else {
        return Ok(());
    };
    println!("{} is missing ({})", first.name, first.used_for);
    if std::io::stdin().is_terminal() && !agreed(&missing)? {
        bail!("install it as root: apt-get install {}", first.name);
    }
    install(&missing)
}

/// Asks on the terminal whether packages may be installed.
fn agreed(packages: &[&Package]) -> Result<bool> {
    let names: Vec<&str> = packages.iter().map(|package| package.name).collect();
    print!("install {} with apt-get now? [y/N] ", names.join(" "));
    std::io::stdout().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(is_yes(&answer))
}

fn is_yes(answer: &str) -> bool {
    matches!(answer.trim(), "y" | "Y" | "yes")
}

/// Builds the programs that are missing, or of another version.
fn tools(workspace: &Workspace) -> Result<()> {
    let listed = cargo(workspace).args(["install", "--list"]).output()?;
    let listed = String::from_utf8_lossy(&listed.stdout);
    for tool in TOOLS.iter().filter(|tool| !tool.is_listed(&listed)) {
        println!("setup: {} is missing ({})", tool.name, tool.used_for);
        let mut install = cargo(workspace);
        install.args(["install", "--locked", &tool.pinned()]);
        if let Err(error) = run_command(&mut install) {
            println!("setup: {error:#}");
            require_on_ci(&[tool.name])?;
        }
    }
    Ok(())
}

fn missing() -> Vec<&'static Package> {
    PACKAGES
        .iter()
        .filter(|package| !package.is_present())
        .collect()
}

fn install(packages: &[&Package]) -> Result<()> {
    let names: Vec<&str> = packages.iter().map(|package| package.name).collect();
    let by_hand = format!("apt-get install {}", names.join(" "));
    let Some(become_root) = way_to_root() else {
        println!("setup: cannot install as this user; run as root: {by_hand}");
        return require_on_ci(&names);
    };
    if find_program("apt-get").is_none() {
        println!(
            "setup: no apt-get here; install what Debian calls: {}",
            names.join(" ")
        );
        return require_on_ci(&names);
    }
    // The package lists of a fresh container are empty and those of an old machine are stale; both
    // make an install fail, so they are fetched after a failure.
    if apt_get(&become_root, &install_arguments(&names)).is_err() {
        let fetched = apt_get(&become_root, &["update"]);
        if let Err(error) = fetched.and_then(|()| apt_get(&become_root, &install_arguments(&names)))
        {
            println!("setup: {error:#}; by hand, as root: {by_hand}");
        }
    }
    let left: Vec<&str> = missing().iter().map(|package| package.name).collect();
    if left.is_empty() {
        Ok(())
    } else {
        require_on_ci(&left)
    }
}

fn install_arguments<'a>(names: &[&'a str]) -> Vec<&'a str> {
    let mut arguments = vec!["install", "--yes", "--no-install-recommends"];
    arguments.extend_from_slice(names);
    arguments
}

fn require_on_ci(names: &[&str]) -> Result<()> {
    if on_ci() {
        bail!("missing on CI: {}", names.join(" "));
    }
    println!(
        "setup: tests that need these are skipped: {}",
        names.join(" ")
    );
    Ok(())
}

/// The words in front of a command that make it run as root, if there are any.
fn way_to_root() -> Option<Vec<&'static str>> {
    if is_root() {
        return Some(vec!["env"]);
    }
    let silent_sudo = Command::new("sudo")
        .args(["--non-interactive", "true"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    silent_sudo.then(|| vec!["sudo", "--non-interactive", "env"])
}

fn apt_get(become_root: &[&str], arguments: &[&str]) -> Result<()> {
    let (first, rest) = become_root.split_first().unwrap_or((&"env", &[]));
    let mut command = Command::new(first);
    command
        .args(rest)
        .args(["DEBIAN_FRONTEND=noninteractive", "apt-get"])
        .args(arguments)
        .stdin(Stdio::null());
    run_command(&mut command)
}

fn is_root() -> bool {
    Command::new("id")
        .arg("-u")
        .output()
        .is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

/// One line for each thing that a machine may or may not support.
fn abilities() -> Vec<String> {
    let root = is_root();
    let say = |able: bool, what: &str, otherwise: &str| {
        if able {
            format!("yes: {what}")
        } else {
            format!("no:  {what} ({otherwise})")
        }
    };
    let rings = std::fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
    vec![
        say(root, "root", "kernel mounts are left out"),
        say(
            root && Path::new("/dev/loop-control").exists(),
            "loop devices",
            "no kernel oracle",
        ),
        say(
            Path::new("/dev/fuse").exists(),
            "/dev/fuse",
            "no FUSE mounts",
        ),
        say(
            rings.is_ok(),
            "FUSE over io_uring",
            "mounts are tested through /dev/fuse only",
        ),
        say(
            Path::new("/dev/shm").is_dir(),
            "/dev/shm for images",
            "images go to the temp folder",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn present_and_missing_programs_are_distinguished() {
        let here = program("coreutils", "ls", "");
        let not_here = program("nothing", "no-such-program-anywhere", "");
        assert!(here.is_present());
        assert!(!not_here.is_present());
    }

    /// A package that is installed is neither installed again nor upgraded.
    #[test]
    fn what_is_present_is_left_alone() {
        let here = PACKAGES.iter().find(|package| package.is_present());
        let here = here.expect("a machine with one of them");
        offer(&[here.name]).unwrap();
        for (answer, expected) in [
            ("y\n", true),
            ("yes\n", true),
            ("\n", false),
            ("no\n", false),
        ] {
            assert_eq!(is_yes(answer), expected, "{answer:?}");
        }
    }

    #[test]
    fn a_tool_of_another_version_is_missing() {
        let tool = &TOOLS[0];
        let line = |version: &str| format!("{} v{version}:\n    {}\n", tool.name, tool.name);
        assert!(tool.is_listed(&line(tool.version)));
        assert!(!tool.is_listed(&line("0.0.1")));
        assert!(tool.pinned().ends_with(&format!("@{}", tool.version)));
    }

    #[test]
    fn the_install_line_names_every_package() {
        let line = install_arguments(&["acl", "attr"]);
        assert_eq!(
            line,
            ["install", "--yes", "--no-install-recommends", "acl", "attr"]
        );
    }
}
