//! **Purpose.** `package`: a command that runs on any Linux, and a Debian package of it with man
//! pages, completions and the helpers of mount(8).
//!
//! | module | responsibility |
//! |---|---|
//! | [`licences`] | the licences of all crates that the command contains |
//!
//! **Model.** The command is linked statically with musl, so that the package depends on nothing.
//! With `--dynamic` it is linked with the C library of this machine, and the package depends on the
//! version whose symbols it uses. A package is checked before it is reported: it is unpacked, and
//! the command in it is run.

mod licences;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::run::{cargo, command_line, run as run_command};
use crate::workspace::Workspace;

const MUSL: &str = "x86_64-unknown-linux-musl";
/// The most that the stripped command may take, in bytes.
const MOST_BYTES: u64 = 15 << 20;
const MAINTAINER: &str = "The fourscore authors <fourscore@localhost>";

/// What is packaged.
#[derive(Args)]
pub(crate) struct Options {
    /// The directory of the command and its package; made if it is missing.
    #[arg(default_value = "target/package")]
    directory: PathBuf,
    /// Links the C library of this machine instead of musl.
    #[arg(long)]
    dynamic: bool,
}

/// Builds, strips, packages and checks the command.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let target = (!options.dynamic).then_some(MUSL);
    let built = build(workspace, target)?;
    let folder = workspace.root.join(&options.directory);
    fs::create_dir_all(&folder)?;
    let command = folder.join("fourscore");
    fs::copy(&built, &command)?;
    run_command(Command::new("strip").arg(&command))?;
    let len_bytes = fs::metadata(&command)?.len();
    ensure!(
        len_bytes <= MOST_BYTES,
        "the stripped command has {len_bytes} bytes, over {MOST_BYTES}"
    );
    let notices = licences::notices(workspace)?;
    let deb = package(workspace, &command, &notices, &folder)?;
    check(&deb, &folder)?;
    println!("{}: {} KiB, stripped", command.display(), len_bytes >> 10);
    println!("{}: unpacks, and its command runs", deb.display());
    Ok(())
}

/// Packages a command that a test has built, and checks the package.
pub(crate) fn smoke(workspace: &Workspace, command: &Path) -> Result<()> {
    let folder = workspace.target().join("package-of-tests");
    fs::create_dir_all(&folder)?;
    let notices = licences::notices(workspace)?;
    let deb = package(workspace, command, &notices, &folder)?;
    check(&deb, &folder)?;
    fs::remove_dir_all(&folder)?;
    Ok(())
}

fn build(workspace: &Workspace, target: Option<&str>) -> Result<PathBuf> {
    let mut command = cargo(workspace);
    command.args([
        "build",
        "--release",
        "--locked",
        "--package",
        "fourscore-cli",
    ]);
    if let Some(target) = target {
        command.args(["--target", target]);
    }
    run_command(&mut command).with_context(|| {
        "a static command needs `rustup target add x86_64-unknown-linux-musl` and, as root, \
         `apt-get install musl-tools`; --dynamic needs neither"
    })?;
    let folder = workspace.target().join(target.unwrap_or_default());
    Ok(folder.join("release/fourscore"))
}

/// Makes the Debian package of a command.
fn package(
    workspace: &Workspace,
    command: &Path,
    notices: &[u8],
    folder: &Path,
) -> Result<PathBuf> {
    let root = folder.join("root");
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    let place = |below: &str| -> Result<PathBuf> {
        let path = root.join(below);
        fs::create_dir_all(path.parent().context("not the root")?)?;
        Ok(path)
    };
    let program = place("usr/bin/fourscore")?;
    fs::copy(command, &program)?;
    set_mode(&program, 0o755)?;
    for helper in ["mount.fourscore", "mount.fuse.fourscore"] {
        symlink("../bin/fourscore", place(&format!("usr/sbin/{helper}"))?)?;
    }
    let pages = root.join("usr/share/man/man1");
    quietly(Command::new(&program).args(["man", "--output"]).arg(&pages))?;
    for page in fs::read_dir(&pages)? {
        quietly(Command::new("gzip").args(["-9n"]).arg(page?.path()))?;
    }
    for (shell, path) in [
        ("bash", "usr/share/bash-completion/completions/fourscore"),
        ("zsh", "usr/share/zsh/vendor-completions/_fourscore"),
        ("fish", "usr/share/fish/vendor_completions.d/fourscore.fish"),
    ] {
        let script = output(Command::new(&program).args(["completions", shell]))?;
        fs::write(place(path)?, script)?;
    }
    let documents = "usr/share/doc/fourscore";
    fs::copy(
        workspace.path("README.md"),
        place(&format!("{documents}/README.md"))?,
    )?;
    fs::copy(
        workspace.path("CHANGELOG.md"),
        place(&format!("{documents}/changelog"))?,
    )?;
    quietly(
        Command::new("gzip")
            .arg("-9n")
            .arg(root.join(documents).join("changelog")),
    )?;
    let mut copyright = b"fourscore: MIT or Apache-2.0, at your option.\n\n".to_vec();
    copyright.extend(fs::read(workspace.path("LICENSE-MIT"))?);
    copyright.extend_from_slice(b"\n\n");
    copyright.extend(fs::read(workspace.path("LICENSE-APACHE"))?);
    fs::write(place(&format!("{documents}/copyright"))?, copyright)?;
    fs::write(place(&format!("{documents}/third-party"))?, notices)?;
    quietly(
        Command::new("gzip")
            .arg("-9n")
            .arg(root.join(documents).join("third-party")),
    )?;
    let architecture = output(Command::new("dpkg").arg("--print-architecture"))?;
    let architecture = architecture.trim();
    fs::write(
        place("DEBIAN/control")?,
        control(&program, architecture, &root)?,
    )?;
    let deb = folder.join(format!("fourscore_{}_{architecture}.deb", version()));
    quietly(
        Command::new("dpkg-deb")
            .args(["--root-owner-group", "--build"])
            .args([&root, &deb]),
    )?;
    fs::remove_dir_all(&root)?;
    Ok(deb)
}

fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// The control file: name, version and what the package depends on.
fn control(program: &Path, architecture: &str, root: &Path) -> Result<String> {
    let depends = match libc_version(&fs::read(program)?) {
        Some((major, minor)) => format!("Depends: libc6 (>= {major}.{minor})\n"),
        None => String::new(),
    };
    let size = output(
        Command::new("du")
            .args(["-sk", "--apparent-size"])
            .arg(root),
    )?;
    let kib = size.split_whitespace().next().unwrap_or("0");
    Ok(format!(
        "Package: fourscore\n\
         Version: {}\n\
         Architecture: {architecture}\n\
         Maintainer: {MAINTAINER}\n\
         Installed-Size: {kib}\n\
         {depends}\
         Recommends: fuse3\n\
         Section: admin\n\
         Priority: optional\n\
         Description: ext4 in user space, made for many cores\n \
         Reads, writes, builds, checks and mounts file systems of ext2, ext3 and ext4\n \
         without root or a kernel mount.\n",
        version()
    ))
}

/// The newest version of glibc whose symbols a program uses; `None` for a static one.
fn libc_version(program: &[u8]) -> Option<(u32, u32)> {
    const PREFIX: &[u8] = b"\0GLIBC_";
    let places = program.windows(PREFIX.len()).enumerate();
    let found = places.filter(|(_, window)| *window == PREFIX);
    found
        .filter_map(|(at, _)| {
            let text = program.get(at + PREFIX.len()..)?;
            let end = text.iter().position(|&byte| byte == 0)?;
            let (major, minor) = std::str::from_utf8(&text[..end]).ok()?.split_once('.')?;
            let minor = minor.split('.').next()?;
            Some((major.parse().ok()?, minor.parse().ok()?))
        })
        .max()
}

/// Unpacks a package, and runs the command in it as an installed one would be run.
fn check(deb: &Path, folder: &Path) -> Result<()> {
    let root = folder.join("unpacked");
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    quietly(Command::new("dpkg-deb").arg("--extract").args([deb, &root]))?;
    let program = root.join("usr/bin/fourscore");
    let said = output(Command::new(&program).arg("--version"))?;
    ensure!(
        said.trim() == format!("fourscore {}", version()),
        "--version says '{said}'"
    );
    let image = folder.join("check.img");
    quietly(
        Command::new(&program)
            .args(["mkfs", "-q"])
            .arg(&image)
            .arg("8M"),
    )?;
    let listed = output(Command::new(&program).arg("ls").arg(&image))?;
    ensure!(listed.contains("lost+found"), "ls says '{listed}'");
    fs::remove_file(&image)?;
    // Under the name of a helper the command takes other arguments: an image and a mount point.
    for helper in ["mount.fourscore", "mount.fuse.fourscore"] {
        let helper = root.join("usr/sbin").join(helper);
        let refused = Command::new(&helper)
            .args(["/nowhere", "/nowhere"])
            .output()?;
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        ensure!(
            said.contains("/nowhere: "),
            "{}: '{said}'",
            helper.display()
        );
    }
    for file in [
        "usr/share/man/man1/fourscore.1.gz",
        "usr/share/man/man1/fourscore-mount.1.gz",
        "usr/share/bash-completion/completions/fourscore",
        "usr/share/zsh/vendor-completions/_fourscore",
        "usr/share/fish/vendor_completions.d/fourscore.fish",
        "usr/share/doc/fourscore/copyright",
        "usr/share/doc/fourscore/third-party.gz",
    ] {
        let len_bytes = fs::metadata(root.join(file))
            .with_context(|| file.to_owned())?
            .len();
        ensure!(len_bytes > 100, "{file} has {len_bytes} bytes");
    }
    fs::remove_dir_all(&root)?;
    Ok(())
}

fn set_mode(path: &Path, mode: u32) -> Result<()> {
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(mode))?)
}

/// Runs a command without showing it; what it says is part of the error.
fn quietly(command: &mut Command) -> Result<()> {
    output(command).map(|_| ())
}

/// The standard output of a command that must succeed.
fn output(command: &mut Command) -> Result<String> {
    let line = command_line(command);
    let output = command.output();
    let output = output.with_context(|| format!("'{line}' could not be started"))?;
    if !output.status.success() {
        bail!(
            "'{line}' failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    String::from_utf8(output.stdout).with_context(|| format!("'{line}' does not print text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_symbols_decide_the_version_of_the_library() {
        let program = b"x\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.9\0GLIBC_PRIVATE\0";
        assert_eq!(libc_version(program), Some((2, 34)));
        assert_eq!(libc_version(b"\x7fELF static"), None);
    }

    /// A package of a command that does not work is no package.
    #[test]
    fn a_broken_command_is_not_packaged() {
        let folder = tempfile::tempdir().unwrap();
        let workspace = Workspace::locate().unwrap();
        let command = folder.path().join("command");
        fs::write(
            &command,
            "#!/bin/sh\n[ \"$1\" = man ] && mkdir -p \"$3\" && : > \"$3/x.1\"\nexit 0\n",
        )
        .unwrap();
        set_mode(&command, 0o755).unwrap();
        let deb = package(&workspace, &command, b"", folder.path()).unwrap();
        let error = check(&deb, folder.path()).unwrap_err();
        assert!(error.to_string().contains("--version says ''"), "{error}");
    }
}
