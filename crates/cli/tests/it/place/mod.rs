//! A folder with a source tree that has every kind of object, for tests.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use fourscore_testkit::{scratch, tools};

use crate::common::{fourscore, printed, text, without_lost_and_found};

/// A folder with a source tree, `tree`, and space for images.
pub(crate) struct Place(pub(crate) tempfile::TempDir);

impl Place {
    /// A tree with every kind of object that the user can create.
    pub(crate) fn new() -> Self {
        let folder = scratch::folder().expect("a folder");
        let place = Self(folder);
        make_tree(&place.tree()).expect("a tree");
        place
    }

    /// A tree that also has objects that only root can create, odd names, and odd attributes.
    pub(crate) fn odd() -> Self {
        let place = Self::new();
        make_odd(&place.tree()).expect("a tree");
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        text(&self.path(name)).to_owned()
    }

    pub(crate) fn tree(&self) -> PathBuf {
        self.path("tree")
    }

    /// Builds an image of the tree, with more arguments of `build`.
    pub(crate) fn build(&self, image: &str, more: &[&str]) -> String {
        let (tree, image) = (self.text("tree"), self.text(image));
        printed(&mut fourscore(
            &[&["build", &tree, "-o", &image], more].concat(),
        ))
    }

    /// The command for a user without root, with a copy of the binary in `output`, into which the
    /// user can write.
    pub(crate) fn as_unprivileged_user(&self, arguments: &[&str]) -> Command {
        let binary = self.path("output/fourscore");
        if !binary.exists() {
            let open = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o777));
            fs::create_dir(self.path("output")).expect("space");
            // Not by this process: a child that another thread starts would keep the copy open for
            // writing for a moment, and it could not be executed.
            let copy = ["--", env!("CARGO_BIN_EXE_fourscore"), "output/fourscore"];
            run("cp", &copy, self.0.path()).expect("space");
            open(self.0.path()).expect("permission");
            open(&self.path("output")).expect("permission");
        }
        let mut command = tools::command("setpriv").expect("it exists");
        command
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(binary)
            .args(arguments);
        command
    }

    /// Checks an image with e2fsck.
    pub(crate) fn check(&self, image: &str) -> Result<()> {
        run("e2fsck", &["-fn", &self.text(image)], self.0.path())
    }

    /// A walk of an image without lost+found.
    pub(crate) fn walk(&self, image: &str) -> String {
        let walk = printed(&mut fourscore(&["walk", "--hash", &self.text(image)]));
        let lines = without_lost_and_found(&walk);
        lines.iter().flat_map(|line| [line, "\n"]).collect()
    }
}

pub(crate) fn walk_of_host(folder: &Path) -> String {
    printed(&mut fourscore(&["walk", "--hash", "--host", text(folder)]))
}

pub(crate) fn run(program: &str, arguments: &[&str], folder: &Path) -> Result<()> {
    let mut command = tools::command(program)?;
    let output = command.args(arguments).current_dir(folder).output()?;
    let message = [output.stdout, output.stderr].concat();
    let message = String::from_utf8_lossy(&message);
    ensure!(
        output.status.success(),
        "{program} {arguments:?}: {message}"
    );
    Ok(())
}

pub(crate) fn make_tree(root: &Path) -> Result<()> {
    fs::create_dir_all(root.join("etc/empty"))?;
    fs::create_dir_all(root.join("many"))?;
    fs::write(root.join("etc/passwd"), "root:x:0:0::/:/bin/sh\n")?;
    fs::write(root.join("etc/big"), vec![b'b'; 3 << 20])?;
    fs::hard_link(root.join("etc/passwd"), root.join("etc/alias"))?;
    symlink("etc/passwd", root.join("link"))?;
    symlink("t".repeat(200), root.join("long"))?;
    fs::File::create(root.join("sparse"))?.set_len(5 << 20)?;
    for nr in 0..500 {
        fs::write(root.join(format!("many/{nr}.txt")), nr.to_string())?;
    }
    if tools::is_root() {
        run("mknod", &["null", "c", "1", "3"], root)?;
        run(
            "chown",
            &["-h", "1000:3000000", "etc/big", "long", "null"],
            root,
        )?;
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::lsetxattr(root.join("etc/passwd"), "trusted.x", b"a\0b", flags)?;
    }
    // After chown, which clears the setuid bit.
    fs::set_permissions(root.join("etc/big"), fs::Permissions::from_mode(0o4711))?;
    run("mkfifo", &["fifo"], root)
}

/// Adds objects that only root can create, odd names, and odd attributes.
fn make_odd(tree: &Path) -> Result<()> {
    let flags = rustix::fs::XattrFlags::empty();
    let set = |name: &str, key: &str, value: &[u8]| {
        rustix::fs::lsetxattr(tree.join(name), key, value, flags)
    };
    fs::write(tree.join(OsStr::from_bytes(&[0xfe; 255])), "not text")?;
    fs::write(tree.join("line\nbreak \\ and tab\t"), "odd")?;
    fs::hard_link(tree.join("etc/passwd"), tree.join("many/third name"))?;
    set("etc/big", "user.a=b", b"equals")?;
    set("etc/big", "user.c%3Dd", b"percent")?;
    set("etc/big", "user.empty", b"")?;
    set("etc/empty", "user.long", &[7; 3000])?;
    set(
        "etc/passwd",
        "security.capability",
        b"\x01\0\0\x02\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
    )?;
    set("link", "trusted.of a link", b"\0")?;
    let sparse = fs::File::create(tree.join("pieces"))?;
    for at in [0, 1 << 20, (3 << 20) + 5, (9 << 20) - 1] {
        sparse.write_all_at(b"data", at)?;
    }
    sparse.set_len(16 << 20)?;
    run("mknod", &["etc/disk", "b", "259", "70000"], tree)?;
    run("touch", &["-d", "@-5.000000007", "etc/empty"], tree)?;
    run(
        "touch",
        &["-h", "-d", "@4000000000.123456789", "long"],
        tree,
    )?;
    run("chmod", &["1777", "many"], tree)?;
    run("chmod", &["2750", "etc"], tree)?;
    run("setfacl", &["-m", "u:1234:rwx,g:99:r", "many/3.txt"], tree)?;
    run("setfacl", &["-d", "-m", "u:1234:rwx", "many"], tree)
}
