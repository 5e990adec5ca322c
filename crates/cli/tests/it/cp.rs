//! `fourscore cp`: into images and out of them.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;

use fourscore_testkit::tools::Need;
use fourscore_testkit::{LoopDevice, require};

use crate::common::{failing, fourscore, printed, refused, text, without_lost_and_found};
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

#[test]
fn an_owner_for_all_copies_keeps_set_id_bits() {
    require!(Need::Root, Need::Program("e2fsck"));
    let place = Place::new();
    let (image, file) = (place.text("image"), place.path("file"));
    printed(&mut fourscore(&["mkfs", "-q", &image, "16M"]));
    fs::write(&file, "text").expect("space");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o6755)).expect("its owner");
    let inside = format!("{image}:/");
    let owner = ["cp", "-a", "--owner", "5:6", text(&file), &inside];
    printed(&mut fourscore(&owner));
    let walk = printed(&mut fourscore(&["walk", &image]));
    assert!(walk.contains("/file f 6755 5 6 "), "{walk}");
    place.check("image").expect("clean");
}

#[test]
fn a_copy_goes_to_what_has_no_length() {
    let place = Place::new();
    let (image, file) = (place.text("image"), place.path("file"));
    printed(&mut fourscore(&["mkfs", "-q", &image, "16M"]));
    fs::write(&file, "text\n").expect("space");
    let inside = format!("{image}:/file");
    printed(&mut fourscore(&["cp", text(&file), &inside]));
    printed(&mut fourscore(&["cp", &inside, "/dev/null"]));
    let copied = printed(&mut fourscore(&["cp", &inside, "/dev/stdout"]));
    assert_eq!(copied, "text\n");
    let dump = ["debugfs", "-R", "dump file /dev/stdout", &image];
    assert_eq!(printed(&mut fourscore(&dump)), "text\n");
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

#[test]
fn a_copy_never_empties_the_image_it_comes_from() {
    let place = Place::new();
    let (image, tree) = (place.text("image"), place.tree());
    printed(&mut fourscore(&["mkfs", "-q", &image, "16M"]));
    let inside = format!("{image}:/passwd");
    let file = tree.join("etc/passwd");
    printed(&mut fourscore(&["cp", text(&file), &inside]));
    let other = place.path("other");
    fs::hard_link(place.path("image"), &other).expect("space");
    let before = fs::read(place.path("image")).expect("an image");
    // A colon is missing.
    for to in [image.as_str(), text(&other)] {
        refused(&["cp", &inside, to], "are the same file");
        let request = format!("dump /passwd {to}");
        let run = fourscore(&["debugfs", "-R", &request, &image]).output();
        let run = run.expect("the program exists");
        let message = String::from_utf8_lossy(&run.stderr);
        assert!(message.contains("are the same file"), "{message}");
        let now = fs::read(place.path("image")).expect("an image");
        assert!(now == before, "{to}: the image was changed");
    }
    // Two names of the image are one image, in which nothing is copied onto itself.
    let from_other = format!("{}:/passwd", text(&other));
    refused(&["cp", &from_other, &inside], "is the source itself");
    let copy = place.path("copy");
    fs::write(&copy, vec![1; 100_000]).expect("space");
    printed(&mut fourscore(&["cp", &inside, text(&copy)]));
    let (found, expected) = (fs::read(&copy), fs::read(&file));
    assert_eq!(found.expect("a copy"), expected.expect("a file"));
}

#[test]
fn a_loop_device_is_the_image_that_it_is_on() {
    require!(Need::KernelMount);
    let place = Place::new();
    let image = place.text("image");
    printed(&mut fourscore(&["mkfs", "-q", &image, "16M"]));
    let file = place.tree().join("etc/passwd");
    printed(&mut fourscore(&[
        "cp",
        text(&file),
        &format!("{image}:/passwd"),
    ]));
    let device = LoopDevice::new(&place.path("image")).expect("a loop device");
    let path = format!("{}:/passwd", text(device.path()));
    refused(
        &["cp", &format!("{image}:/passwd"), &path],
        "is the source itself",
    );
    let before = fs::read(place.path("image")).expect("an image");
    refused(&["cp", &path, &image], "are the same file");
    assert!(fs::read(place.path("image")).expect("an image") == before);
}

#[test]
fn a_tree_of_any_depth_is_copied() {
    const DEPTH: u32 = 2000;
    let place = Place::new();
    let image = place.text("image");
    printed(&mut fourscore(&["mkfs", "-q", "-N", "8000", &image, "64M"]));
    let device = fourscore_block::open_path(
        &place.path("image"),
        fourscore_block::DeviceOptions::read_write(),
    );
    let device = fourscore_sync::Arc::new(device.expect("an image"));
    let fs = fourscore::Fs::mount(device, &fourscore::MountOptions::new()).expect("a mount");
    let new = fourscore::NewAttributes::owned_by(0, 0).permissions(0o755);
    let mut dir = fourscore::InodeNr::ROOT;
    for _ in 0..DEPTH {
        dir = fs.mkdir(dir, b"d", &new).expect("space");
    }
    fs.unmount().expect("it is durable");
    // Far less of a stack than a frame for each level takes.
    let script = "ulimit -s 512 && exec \"$@\"";
    for options in ["-r", "-a"] {
        let (from, to) = (format!("{image}:/d"), format!("{image}:/copy{options}"));
        let program = fourscore(&[""; 0]);
        let mut command = Command::new("sh");
        command
            .args(["-c", script, "sh"])
            .arg(program.get_program());
        printed(command.args(["cp", options, &from, &to]));
        let walk = printed(&mut fourscore(&[
            "walk",
            &image,
            &format!("/copy{options}"),
        ]));
        assert_eq!(walk.lines().count(), DEPTH as usize, "{options}");
    }
}

#[test]
fn a_host_path_with_a_dot_and_a_slash_may_contain_anything() {
    let place = Place::new();
    let image = place.text("image");
    printed(&mut fourscore(&["mkfs", "-q", &image, "16M"]));
    let name = "user@host:file@p9";
    fs::write(place.path(name), "text").expect("space");
    let folder = place.path(name);
    let folder = folder.parent().expect("a folder");
    let (from, to) = (format!("./{name}"), format!("{image}:/file"));
    printed(fourscore(&["cp", &from, &to]).current_dir(folder));
    assert_eq!(printed(&mut fourscore(&["cat", &to])), "text");
    let back = "./other@host:file";
    printed(fourscore(&["cp", &to, back]).current_dir(folder));
    let found = fs::read_to_string(folder.join(back)).expect("a copy");
    assert_eq!(found, "text");
}
