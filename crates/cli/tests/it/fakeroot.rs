//! `fourscore build` under fakeroot, as Buildroot and Debian's tools run it: the image has the
//! attributes that fakeroot shows.

use std::fs;
use std::process::Command;

use fourscore_testkit::tools::{self, Need};
use fourscore_testkit::{require, scratch};

use crate::common::{text, without_lost_and_found};

/// Makes a tree that only root can create, and an image of it.
const SCRIPT: &str = "
    set -e
    mkdir -p tree/dev tree/etc
    echo file >tree/etc/file
    ln tree/etc/file tree/etc/same
    echo suid >tree/etc/suid
    ln -s file tree/etc/link
    mknod tree/dev/null c 1 3
    mknod tree/dev/disk b 259 300
    chown 1000:3000000 tree/etc/file
    chown -h 5:6 tree/etc/link
    chown 33:44 tree/etc/suid
    chmod 4711 tree/etc/suid
    chown 7:8 tree
    setfattr -n security.capability -v 0x0100000200040000000000000000000000000000 tree/etc/suid
    $FOURSCORE walk --host tree >walk.source
    $FOURSCORE build tree -o image >summary
    $FOURSCORE walk image >walk.image
";

#[test]
fn the_image_has_the_attributes_of_fakeroot() {
    require!(
        Need::Program("fakeroot"),
        Need::Program("setfattr"),
        Need::Program("debugfs"),
        Need::Program("e2fsck")
    );
    let folder = scratch::folder().expect("a folder");
    let mut command = tools::command("fakeroot").expect("it exists");
    command
        .args(["sh", "-c", SCRIPT])
        .current_dir(folder.path())
        .env("FOURSCORE", env!("CARGO_BIN_EXE_fourscore"))
        // Root uses fakeroot as well, so that the real attributes differ.
        .env("FAKEROOTDONTTRYCHOWN", "1");
    tools::stdout_of(&mut command).expect("it works");

    let read = |name: &str| fs::read_to_string(folder.path().join(name)).expect("it was written");
    let (source, image) = (read("walk.source"), read("walk.image"));
    let source_lines: Vec<&str> = source.lines().collect();
    assert_eq!(source_lines, without_lost_and_found(&image));
    for wanted in [
        "/ d 0755 7 8 ",
        "/dev/disk b 0644 0 0 1 0 ",
        "/etc/file f 0644 1000 3000000 2 5 ",
        "/etc/link l 0777 5 6 1 4 ",
        "/etc/suid f 4711 33 44 1 5 ",
    ] {
        assert!(source.contains(wanted), "{wanted}\n{source}");
    }
    let really = Command::new(env!("CARGO_BIN_EXE_fourscore"))
        .args(["walk", "--host", text(&folder.path().join("tree"))])
        .output()
        .expect("it runs");
    let really = String::from_utf8_lossy(&really.stdout).into_owned();
    assert!(
        really.contains("/dev/disk f ") && !really.contains("3000000"),
        "the tree itself has none of it: {really}"
    );

    let debugfs = |request: &str| {
        let image = folder.path().join("image");
        tools::run(
            "debugfs",
            &["-R".as_ref(), request.as_ref(), image.as_ref()],
        )
        .expect("debugfs reads it")
    };
    let device = debugfs("stat /dev/disk");
    assert!(
        device.contains("Type: block special") && device.contains("259:300"),
        "{device}"
    );
    let capability = debugfs("ea_get -x /etc/suid security.capability");
    assert!(capability.contains("01 00 00 02 00 04"), "{capability}");
    tools::run(
        "e2fsck",
        &["-fn".as_ref(), folder.path().join("image").as_ref()],
    )
    .expect("it is clean");
}
