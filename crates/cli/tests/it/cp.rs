//! `fourscore cp`: into images and out of them.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use fourscore_testkit::require;
use fourscore_testkit::tools::Need;

use crate::common::{failing, fourscore, printed, text, without_lost_and_found};
use crate::place::{Place, walk_of_host};

/// The lines of the copied objects, by path.
fn copied(walk: &str) -> Vec<&str> {
    let mut lines = without_lost_and_found(walk);
    lines.retain(|line| !line.starts_with("/ "));
    lines
}

#[test]
fn a_tree_is_copied_into_an_image_and_back() {
    require!(
        Need::Root,
        Need::Program("setfacl"),
        Need::Program("e2fsck")
    );
    let place = Place::odd();
    let image = place.text("image");
    printed(&mut fourscore(&["mkfs", "-q", "-b", "4096", &image, "64M"]));
    let mut entries: Vec<_> = fs::read_dir(place.tree())
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path().into_os_string())
        .collect();
    entries.sort();
    let mut arguments = vec!["cp".into(), "-a".into()];
    arguments.extend(entries);
    arguments.push(format!("{image}:/").into());
    printed(&mut fourscore(&arguments));
    place.check("image").expect("clean");
    let source = walk_of_host(&place.tree());
    let walk = place.walk("image");
    let (found, expected) = (copied(&walk), copied(&source));
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.len(), expected.len());
    let (out, etc) = (place.path("out"), format!("{image}:/etc"));
    fs::create_dir(&out).expect("a folder");
    printed(&mut fourscore(&[
        "cp",
        "-a",
        &etc,
        &format!("{image}:/many"),
        text(&out),
    ]));
    printed(&mut fourscore(&[
        "cp",
        "-a",
        &format!("{image}:/link"),
        text(&out.join("name")),
    ]));
    assert_eq!(
        fs::read_link(out.join("name")).expect("a link").to_str(),
        Some("etc/passwd")
    );
    fs::remove_file(out.join("name")).expect("there");
    let back = walk_of_host(&out);
    let wanted = |line: &&str| line.starts_with("/etc") || line.starts_with("/many");
    let source: Vec<_> = source.lines().filter(wanted).collect();
    assert_eq!(copied(&back), source);
}

#[test]
fn files_are_copied_and_replaced() {
    require!(Need::Program("e2fsck"));
    let place = Place::new();
    let (image, tree) = (place.text("image"), place.tree());
    let inside = |path: &str| format!("{image}:{path}");
    let file = tree.join("etc/passwd");
    printed(&mut fourscore(&["mkfs", "-q", &image, "16M"]));
    printed(&mut fourscore(&[
        "cp",
        text(&tree.join("etc/big")),
        &inside("/file"),
    ]));
    printed(&mut fourscore(&[
        "cp",
        text(&tree.join("link")),
        &inside("/file"),
    ]));
    printed(&mut fourscore(&[
        "cp",
        text(&file),
        text(&tree.join("sparse")),
        &inside("/"),
    ]));
    place.check("image").expect("clean");
    let cat = |path: &str| printed(&mut fourscore(&["cat", &image, path]));
    let content = fs::read_to_string(&file).expect("text");
    assert_eq!((cat("/file"), cat("/passwd")), (content.clone(), content));
    let back = place.path("back");
    fs::write(&back, "longer than what comes, which it replaces").expect("space");
    printed(&mut fourscore(&["cp", &inside("/passwd"), text(&back)]));
    assert_eq!(
        fs::read(&back).expect("there"),
        fs::read(&file).expect("there")
    );
    printed(&mut fourscore(&[
        "cp",
        &inside("/sparse"),
        &inside_dir(&place),
    ]));
    let sparse = fs::metadata(place.path("dir/sparse")).expect("there");
    assert_eq!((sparse.len(), sparse.blocks()), (5 << 20, 0));
    assert_eq!(sparse.permissions().mode() & 0o7777, 0o644);
}

fn inside_dir(place: &Place) -> String {
    fs::create_dir(place.path("dir")).expect("a folder");
    place.text("dir")
}

#[test]
fn objects_that_cannot_be_copied_are_named() {
    require!(Need::Program("e2fsck"));
    let place = Place::new();
    let (image, tree) = (place.text("image"), place.text("tree"));
    let inside = |path: &str| format!("{image}:{path}");
    printed(&mut fourscore(&["mkfs", "-q", &image, "16M"]));
    let refused = |arguments: &[&str], status: i32, why: &str| {
        let arguments = [&["cp"], arguments].concat();
        let (found, message) = failing(&arguments);
        assert_eq!(found, Some(status), "{arguments:?}: {message}");
        assert!(message.contains(why), "{message}");
    };
    refused(&[&tree, &inside("/")], 1, "is a directory");
    refused(&[&inside("/lost+found"), &tree], 1, "use -a to copy it");
    refused(&[&inside("/nothing"), &tree], 1, "nothing");
    refused(&[&format!("{tree}/nothing"), &inside("/")], 1, "nothing");
    refused(&[&tree, "elsewhere"], 2, "must be in an image");
    refused(&[&inside("/a"), &inside("/b")], 1, "/a: no such file");
    refused(&[&tree, &tree, &inside("/new")], 2, "directory");
    refused(
        &[&format!("{tree}/fifo"), &inside("/nowhere/x")],
        1,
        "no such file",
    );
    // A file that does not fit is reported, and the image stays clean.
    let big = place.path("huge");
    fs::write(&big, vec![1; 20 << 20]).expect("space");
    refused(&[text(&big), &inside("/")], 1, "no space");
    place.check("image").expect("clean");
}
