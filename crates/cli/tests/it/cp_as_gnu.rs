//! `fourscore cp` into an image beside GNU cp into a directory of the host: the same calls, and
//! after each the same tree and the same success.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use fourscore_testkit::require;
use fourscore_testkit::tools::Need;

use crate::common::{fourscore, printed, text, without_lost_and_found};
use crate::place::{Place, run};

/// Calls, one on a line; `DST` is the root of the destination, and the sources are in the current
/// directory. Each begins with what the calls before it left.
const CALLS: &str = "
file DST/
file DST/new
file DST/new
suid DST/new
suid DST/fresh
link DST/through
other DST/to-file
other DST/dangling
other DST/to-dir
file DST/missing/x
file DST/dir
file DST/new/
nothing DST/
dir DST/
-r dir DST/
-r dir DST/
-r dir DST/copy
-r dir/. DST/merged
-r dir/. DST/merged
-r dir/.. DST/up
-r dir/ DST/slash
-r -T dir DST/dir
-r -T dir DST/tee
-T file DST/dir
-r dir DST/new
-r dir DST/to-dir
-r link DST/linked
-r link DST/linked
-r link DST/new
-r link/ DST/link-slash
-r fifo DST/fifo
-r fifo DST/fifo
-n other DST/new
-n file DST/fresh-n
-r -n dir DST/dir
file other DST/new
file other nothing DST/dir
file dir other DST/dir
-a hard1 hard2 DST/dir
-a hard1 hard2 DST/dir
-a file DST/to-file
-a other DST/kept
-a link DST/kept
-a link DST/a-link
-a dir DST/a
-a dir/. DST/a
-a dir/. DST/a-new
-a other DST/a/sub/x
-a other DST/one
other DST/two
-a fifo DST/kept
-a dir DST/tree
-r tree DST
-a setgid DST/setgid
-r setgid DST/setgid2
-r sticky DST/sticky
-r dir DST/setgid
-r dir/. DST/to-dir
-r dir/. DST/to-dir/
-r -T dir DST/to-dir/
file DST/newname/
-r link DST/newname/
-r dir DST/newname/
file over/file DST/merged
-a hard1 over/hard1 hard2 DST/a-new
-n file over/file DST/real
/proc/version DST/version
";

fn make_sources(folder: &Path) {
    fs::create_dir_all(folder.join("dir/sub/deep")).expect("space");
    fs::create_dir(folder.join("over")).expect("space");
    for (name, content, mode) in [
        ("file", "file\n", 0o640),
        ("other", "other\n", 0o777),
        ("suid", "suid\n", 0o4755),
        ("dir/one", "one\n", 0o600),
        ("dir/sub/two", "two\n", 0o666),
        ("hard1", "hard\n", 0o644),
        ("over/file", "over file\n", 0o644),
        ("over/hard1", "over hard1\n", 0o644),
    ] {
        let path = folder.join(name);
        fs::write(&path, content).expect("space");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("its owner");
    }
    fs::hard_link(folder.join("hard1"), folder.join("hard2")).expect("space");
    fs::hard_link(folder.join("dir/one"), folder.join("dir/sub/linked")).expect("space");
    symlink("file", folder.join("link")).expect("space");
    symlink("../file", folder.join("dir/link")).expect("space");
    symlink("nowhere", folder.join("dir/sub/broken")).expect("space");
    for (name, mode) in [
        ("setgid", 0o2775),
        ("sticky", 0o1777),
        ("dir/sub/deep", 0o500),
    ] {
        fs::create_dir_all(folder.join(name)).expect("space");
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(folder.join(name), mode).expect("its owner");
    }
    fs::create_dir_all(folder.join("tree/dir/sub")).expect("space");
    fs::write(folder.join("tree/dir/sub/added"), "added\n").expect("space");
    run("mkfifo", &["fifo"], folder).expect("a fifo");
}

fn make_destination(folder: &Path) {
    fs::create_dir_all(folder.join("dir/dir")).expect("space");
    fs::create_dir(folder.join("real")).expect("space");
    fs::create_dir(folder.join("merged")).expect("space");
    fs::create_dir(folder.join("up")).expect("space");
    fs::create_dir(folder.join("tree")).expect("space");
    fs::write(folder.join("target"), "a target\n").expect("space");
    fs::write(folder.join("kept"), "kept\n").expect("space");
    fs::write(folder.join("one"), "one of two names\n").expect("space");
    fs::hard_link(folder.join("one"), folder.join("two")).expect("space");
    symlink("target", folder.join("to-file")).expect("space");
    symlink("none", folder.join("dangling")).expect("space");
    symlink("real", folder.join("to-dir")).expect("space");
    symlink("to-file", folder.join("through")).expect("space");
}

/// A walk without what differs by itself: times of what is not copied with them.
fn lines(walk: &str, archive: bool) -> Vec<String> {
    let cut = |line: &str| {
        let mut fields: Vec<&str> = line.split(' ').collect();
        if !archive && fields.len() > 7 {
            fields[7] = "-";
        }
        fields.join(" ")
    };
    { without_lost_and_found(walk).into_iter() }
        .filter(|line| !line.starts_with("/ "))
        .map(cut)
        .collect()
}

#[test]
fn each_call_does_what_gnu_cp_does() {
    require!(Need::Root, Need::Program("e2fsck"), Need::Program("mkfifo"));
    let place = Place::new();
    let (sources, host) = (place.path("sources"), place.path("host"));
    make_sources(&sources);
    make_destination(&host);
    let image = place.text("image");
    printed(&mut fourscore(&[
        "build",
        text(&host),
        "--size",
        "32M",
        "-o",
        &image,
    ]));
    let calls: Vec<&str> = CALLS.lines().filter(|call| !call.is_empty()).collect();
    for call in &calls {
        let words = |root: &str| -> Vec<String> {
            call.split(' ')
                .map(|word| word.replace("DST", root))
                .collect()
        };
        let gnu = Command::new("sh")
            .args(["-c", "umask 022; exec cp \"$@\"", "cp"])
            .args(words(text(&host)))
            .current_dir(&sources)
            .output()
            .expect("cp is there");
        let ours = fourscore(&[vec!["cp".to_owned()], words(&format!("{image}:"))].concat())
            .current_dir(&sources)
            .output()
            .expect("it runs");
        let said = String::from_utf8_lossy(&ours.stderr);
        let theirs = String::from_utf8_lossy(&gnu.stderr);
        assert_eq!(
            ours.status.success(),
            gnu.status.success(),
            "{call}: we said {said:?}, GNU cp {theirs:?}"
        );
        assert_eq!(said.is_empty(), ours.status.success(), "{call}: {said}");
        assert!(
            said.lines().all(|line| line.starts_with("fourscore: ")),
            "{said}"
        );
        let walk_host = printed(&mut fourscore(&["walk", "--hash", "--host", text(&host)]));
        let walk_image = printed(&mut fourscore(&["walk", "--hash", &image]));
        let (found, expected) = (lines(&walk_image, false), lines(&walk_host, false));
        assert!(
            found == expected,
            "{call} (said {said:?}, GNU cp {theirs:?})\nours:\n{}\nGNU cp:\n{}",
            difference(&found, &expected),
            difference(&expected, &found)
        );
    }
    // Times are those of the sources where -a copied them.
    let timed = |walk: &str| -> Vec<String> {
        let all = lines(walk, true).into_iter();
        all.filter(|line| line.starts_with("/a-new/") && !line.contains("/deep"))
            .collect()
    };
    let walk_host = printed(&mut fourscore(&["walk", "--host", text(&host)]));
    let found = timed(&printed(&mut fourscore(&["walk", &image])));
    assert_eq!(found, timed(&walk_host));
    assert!(found.len() > 3, "{found:?}");
    place.check("image").expect("clean");
}

fn difference(one: &[String], other: &[String]) -> String {
    let lines = one.iter().filter(|line| !other.contains(line));
    lines.cloned().collect::<Vec<_>>().join("\n")
}

#[test]
fn standard_input_and_output_and_owners() {
    require!(Need::Program("e2fsck"));
    let place = Place::new();
    let image = place.text("image");
    fs::create_dir_all(place.path("root/etc")).expect("space");
    fs::write(place.path("root/etc/passwd"), "anna:x:1000:100::/:\n").expect("space");
    printed(&mut fourscore(&[
        "build",
        &place.text("root"),
        "--size",
        "16M",
        "-o",
        &image,
    ]));
    let inside = |path: &str| format!("{image}:{path}");
    let input = place.path("input");
    fs::write(&input, vec![b'x'; 3_000_000]).expect("space");
    let from_stdin = |path: &str, more: &[&str]| {
        let to = inside(path);
        let arguments = [&["cp"], more, &["-", &to]].concat();
        fourscore(&arguments)
            .stdin(Stdio::from(File::open(&input).expect("there")))
            .output()
            .expect("it runs")
    };
    assert!(from_stdin("/big", &["--owner", "anna:7"]).status.success());
    let stat = printed(&mut fourscore(&["stat", "--json", &image, "/big"]));
    let stat: serde_json::Value = serde_json::from_str(&stat).expect("JSON");
    assert_eq!((&stat["uid"], &stat["gid"]), (&1000.into(), &7.into()));
    assert_eq!(stat["size_bytes"], 3_000_000);
    assert_eq!(stat["mode"], "0644");
    fs::write(&input, "short").expect("space");
    assert!(from_stdin("/big", &[]).status.success());
    let output = fourscore(&["cp", &inside("/big"), "-"])
        .output()
        .expect("it runs");
    assert_eq!(output.stdout, b"short");
    let refused = from_stdin("/", &[]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("standard input has no name"), "{said}");
    place.check("image").expect("clean");
}

#[test]
fn from_image_to_image() {
    require!(
        Need::Root,
        Need::Program("e2fsck"),
        Need::Program("setfacl")
    );
    let place = Place::odd();
    place.build("one", &["--size", "64M", "-b", "4096"]);
    let (one, two) = (place.text("one"), place.text("two"));
    printed(&mut fourscore(&["mkfs", "-q", "-b", "4096", &two, "64M"]));
    printed(&mut fourscore(&[
        "cp",
        "-a",
        &format!("{one}:/."),
        &format!("{two}:/"),
    ]));
    assert_eq!(place.walk("two"), place.walk("one"));
    place.check("two").expect("clean");
    // Within one image, and not into itself.
    printed(&mut fourscore(&[
        "cp",
        "-a",
        &format!("{two}:/etc"),
        &format!("{two}:/copy"),
    ]));
    let walk = place.walk("two");
    // Names outside of the directory are not copied, and do not count in the copy.
    let without_links = |line: &str| {
        let mut fields: Vec<&str> = line.split(' ').collect();
        fields[5] = "-";
        fields.join(" ")
    };
    let below = |dir: &str| -> Vec<String> {
        let lines = walk.lines().filter_map(|line| line.strip_prefix(dir));
        lines.map(without_links).collect()
    };
    assert_eq!(below("/copy"), below("/etc"));
    assert!(below("/copy").len() > 1);
    for (arguments, why) in [
        (["-r", "/etc", "/etc"], "is not copied into itself"),
        (["-r", "/etc/passwd", "/etc/passwd"], "is the source itself"),
    ] {
        let [option, from, to] = arguments;
        let (from, to) = (format!("{two}:{from}"), format!("{two}:{to}"));
        let output = fourscore(&["cp", option, &from, &to])
            .output()
            .expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(why) && !output.status.success(), "{said}");
    }
    place.check("two").expect("clean");
}

/// The object that is at fault is named: the source or the target.
#[test]
fn errors_name_the_object_at_fault() {
    let place = Place::new();
    let image = place.text("image");
    printed(&mut fourscore(&["mkfs", "-q", &image, "16M"]));
    let file = place.text("file");
    fs::write(&file, "file").expect("space");
    let inside = |path: &str| format!("{image}:{path}");
    for (arguments, expected) in [
        (
            ["nothing", &inside("/")],
            "fourscore: nothing: No such file or directory\n".to_owned(),
        ),
        (
            [&file, &inside("/no/file")],
            format!("fourscore: {image}: /no/file: no such file or directory\n"),
        ),
        (
            [&file, &inside("/lost+found/file/x")],
            format!("fourscore: {image}: /lost+found/file/x: no such file or directory\n"),
        ),
        (
            [&inside("/nothing"), &inside("/x")],
            format!("fourscore: {image}: /nothing: no such file or directory\n"),
        ),
    ] {
        let output = fourscore(&[&["cp"], &arguments[..]].concat())
            .output()
            .expect("it runs");
        assert_eq!(String::from_utf8_lossy(&output.stderr), expected);
        assert_eq!(output.status.code(), Some(1));
    }
    assert_eq!(fs::metadata(&file).expect("the source").size(), 4);
}
