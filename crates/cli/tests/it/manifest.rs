//! `fourscore build --manifest` and `--write-manifest`: attributes that a user without root cannot
//! set in a tree, and a list of the objects of an image.

use std::fs;

use fourscore_testkit::require;
use fourscore_testkit::tools::{self, Need};

use crate::common::{failing, fourscore, printed, text};
use crate::place::{Place, run};

const EPOCH: &str = "1700000000";

/// Builds with a fixed clock.
fn build(arguments: &[&str]) -> String {
    let mut command = fourscore(&[&["build"], arguments].concat());
    printed(command.env("SOURCE_DATE_EPOCH", EPOCH))
}

/// A copy of the tree as a user can make it who may neither change owners nor create devices.
fn user_copy(place: &Place) -> String {
    run(
        "cp",
        &["-r", "--no-preserve=all", "tree", "copy"],
        place.0.path(),
    )
    .expect("a copy");
    let copy = place.path("copy");
    // Each has one name, since cp keeps no attributes.
    fs::remove_file(copy.join("etc/alias")).expect("it was copied");
    fs::hard_link(copy.join("etc/passwd"), copy.join("etc/alias")).expect("space");
    let null = copy.join("null");
    fs::remove_file(&null).expect("it was copied");
    fs::write(null, "").expect("space");
    fs::remove_file(copy.join("fifo")).expect("it was copied");
    text(&copy).to_owned()
}

#[test]
fn a_written_manifest_makes_an_identical_image_of_a_user_copy() {
    require!(
        Need::Root,
        Need::Program("bsdtar"),
        Need::Program("setpriv")
    );
    let place = Place::new();
    let (tree, image) = (place.text("tree"), place.text("image"));
    let (manifest, sums) = (place.text("manifest"), place.text("sums"));
    build(&[
        &tree,
        "-o",
        &image,
        "--verify",
        "--write-manifest",
        &manifest,
        "--sums",
        &sums,
    ]);
    let copy = user_copy(&place);
    let (other, again) = (place.text("output/image"), place.text("output/manifest"));
    let more = ["--manifest", &manifest, "--write-manifest", &again];
    let arguments = [&["build", &copy, "-o", &other, "--verify"][..], &more].concat();
    printed(
        place
            .as_unprivileged_user(&arguments)
            .env("SOURCE_DATE_EPOCH", EPOCH),
    );
    assert_eq!(place.walk("output/image"), place.walk("image"));
    let bytes = |name: &str| fs::read(place.path(name)).expect("it was written");
    assert!(bytes("output/image") == bytes("image"), "the images differ");
    assert_eq!(bytes("output/manifest"), bytes("manifest"));

    let names = |text: &str| -> Vec<String> {
        let mut names: Vec<String> = text.lines().map(str::to_owned).collect();
        names.sort();
        names
    };
    let mut list = tools::command("bsdtar").expect("it exists");
    let listed = list.args(["-tf", &manifest]).output().expect("it runs");
    let found = names(&String::from_utf8_lossy(&listed.stdout));
    let mut find = tools::command("find").expect("it exists");
    let find = find.arg(".").current_dir(place.tree());
    let mut expected = names(&tools::stdout_of(find).expect("it works"));
    expected.push("./lost+found".to_owned());
    expected.sort();
    assert_eq!(found, expected, "bsdtar reads the manifest");
    run("sha256sum", &["--check", "--quiet", &sums], &place.tree()).expect("the same sums");
    let listed = fs::read_to_string(&manifest).expect("it was written");
    for line in fs::read_to_string(&sums).expect("sums").lines() {
        let sum = line.split(' ').next().expect("a sum");
        assert!(listed.contains(&format!("sha256digest={sum}")), "{line}");
    }
}

#[test]
fn a_manifest_of_bsdtar_is_read() {
    require!(Need::Root, Need::Program("bsdtar"));
    let place = Place::new();
    let (tree, manifest) = (place.text("tree"), place.text("manifest"));
    let options = "--options=!all,type,mode,uid,gid,time,link,device,size,sha256,indent";
    run(
        "bsdtar",
        &[
            "-cf",
            &manifest,
            "--format=mtree",
            options,
            "-C",
            &tree,
            ".",
        ],
        place.0.path(),
    )
    .expect("a manifest");
    let copy = user_copy(&place);
    let (image, other) = (place.text("image"), place.text("other"));
    build(&[&tree, "-o", &image]);
    build(&[&copy, "-o", &other, "--manifest", &manifest]);
    let without_xattrs = |walk: String| -> Vec<String> {
        let cut = |line: &str| {
            let mut fields: Vec<&str> = line.split(' ').collect();
            fields.remove(10);
            fields.join(" ")
        };
        walk.lines().map(cut).collect()
    };
    assert_eq!(
        without_xattrs(place.walk("other")),
        without_xattrs(place.walk("image"))
    );
}

#[test]
fn the_saved_state_of_fakeroot_is_read() {
    require!(Need::Program("fakeroot"));
    let place = Place::new();
    let script = "mkdir poor && echo x >poor/file && mknod poor/null c 1 3 && mkfifo poor/fifo &&
        chown 5:6 poor/file && chown 7 poor && chmod 4755 poor/file";
    let mut fakeroot = tools::command("fakeroot").expect("it exists");
    fakeroot
        .args(["-s", &place.text("saved"), "sh", "-c", script])
        .env("FAKEROOTDONTTRYCHOWN", "1")
        .current_dir(place.0.path());
    tools::stdout_of(&mut fakeroot).expect("it works");
    let (poor, image) = (place.text("poor"), place.text("image"));
    build(&[&poor, "-o", &image, "--manifest", &place.text("saved")]);
    let walk = place.walk("image");
    for wanted in [
        "/ d 0755 7 ",
        "/file f 4755 5 6 ",
        "/null c 0644 ",
        " 1:3 ",
        "/fifo p ",
    ] {
        assert!(walk.contains(wanted), "{wanted}\n{walk}");
    }
}

#[test]
fn invalid_lines_are_named_and_no_image_is_left() {
    let place = Place::new();
    let (tree, image, manifest) = (place.text("tree"), place.text("image"), place.text("list"));
    for (lines, expected) in [
        (
            "etc mode=x\n",
            "list: line 1: etc: 'mode=x' is not an octal mode",
        ),
        (
            "#mtree\n\nno/such type=file\n",
            "list: line 3: no/such: is not in the sources",
        ),
        (
            "./etc/big size=1\n",
            "./etc/big: has 3145728 bytes in the sources and 1 in the",
        ),
        ("dev=x,ino=1\n", "list: line 1: 'dev=x' is not a number"),
    ] {
        fs::write(place.path("list"), lines).expect("space");
        let (status, message) = failing(&["build", &tree, "-o", &image, "--manifest", &manifest]);
        assert_eq!(status, Some(1), "{message}");
        assert!(
            message.contains(expected),
            "expected {expected}\nfound    {message}"
        );
        assert!(!place.path("image").exists());
    }
}
