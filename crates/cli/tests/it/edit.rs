//! `fourscore edit`: each verb does what the program of its name does to a directory of the host.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::oracle::{assert_clean, dumpe2fs_header};
use fourscore_testkit::require;
use fourscore_testkit::tools::{self, Need};

use crate::common::{failing, fourscore, printed, text, without_lost_and_found};
use crate::place::Place;

/// A script that is both one of a shell, in a directory, and one of `fourscore edit`.
const SCRIPT: &str = r#"
# names
mkdir -p new/deep/er new/deep
mkdir -m 1770 'new/with blank' "new/quo\"ted"
rm text.txt
rm -f no-such-file
rm -r folder
mkdir folder
mv empty folder
mv folder/empty \
   folder/full
ln -s ../folder/full new/link
ln folder/full new/hard
ln -s -f elsewhere new/link
ln -s folder into
ln new/hard into
mknod -m 600 new/null c 1 3
mknod new/disk b 7 300
mknod new/fifo p
rmdir new/deep/er
write new/two <input
ln new/two new/names
ln -f new/names folder/names
ln -f new/names folder/names
ln -s deep new/to-deep

# data
write new/data <input
write folder/full < 'in put'
write -a folder/full <input
truncate -s 70000 new/data
truncate -s -1K new/data
truncate -s +5 new/grown
truncate -s 12 -c not-made

# attributes
chmod 4750 new/data
chmod -R u=rwX,g=rX,o-rwx new
chmod +x folder/full
chmod -w folder/full
chmod g=u,o=g new/grown
chmod 2755 folder
chmod 0700 folder
chown 1000 new/data
chown 1000:2000 folder/full
chown :77 new/grown
chown -R 12:13 new/deep
chown -h 5:6 new/link
touch -d @1700000000 new/touched
touch -a -d 2020-01-31T12:00:00Z new/touched
touch -m -d @1600000000.25 new/data
touch -h -d @1500000000 new/link
touch -c -d @5 not-made
setfattr -n user.note -v "a value" new/data
setfattr -n user.hex -v 0x00ff new/data
setfattr -n user.gone -v x new/data
setfattr -x user.gone new/data
setfattr -n trusted.t -v 0sAP8= new
setfacl -m u:1000:rwx,g:7:r new/data
setfacl -m m::rx new/data
setfacl -m u:1001:rw new/grown
setfacl -x u:1001 new/grown
setfacl -m d:u:5:rwx new
setfacl -d -m g:6:rx new
setfacl -m u:3:r folder/full
setfacl -b folder/full
setfacl -k new/deep
setfacl -m u:8:rwx,g::r new/names
setfacl -b -m u:9:r new/names
mkdir new/inherits
chown -R 8:9 new/to-deep
chmod 2775 folder
mkdir -m 750 folder/set-group
mkdir -m 00750 folder/no-set-group
"#;

/// What the script writes, and the verb that only `edit` has.
const IN_SHELL: &str = r#"
set -eu
umask 022
write() {
    if [ "$1" = -a ]; then cat >> "$2"; else cat > "$1"; fi
}
"#;

/// Runs the script in a directory of the host.
fn in_shell(folder: &Path, place: &Place) {
    let script = SCRIPT
        .replace("<input", &format!("<{}", place.text("input")))
        .replace("< 'in put'", &format!("<'{}'", place.text("in put")));
    let output = Command::new("bash")
        .args(["-c", &format!("{IN_SHELL}{script}")])
        .env("TZ", "UTC")
        .current_dir(folder)
        .output()
        .expect("bash is there");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

fn small_tree(place: &Place) {
    let tree = place.path("small");
    fs::create_dir_all(tree.join("folder/sub")).expect("space");
    fs::write(tree.join("text.txt"), "text\n").expect("space");
    fs::write(tree.join("empty"), "").expect("space");
    fs::write(tree.join("folder/sub/file"), vec![7; 20_000]).expect("space");
    symlink("/nowhere", tree.join("folder/link")).expect("space");
    fs::write(place.path("input"), vec![b'x'; 100_000]).expect("space");
    fs::write(place.path("in put"), "short\n").expect("space");
}

/// The lines of a walk, with the times of those that the script gives them.
fn comparable(walk: &str) -> Vec<String> {
    let lines = without_lost_and_found(walk);
    let cut = |line: &str| {
        let mut fields: Vec<&str> = line.split(' ').collect();
        let has_time = ["/new/touched", "/new/data", "/new/link"].contains(&fields[0]);
        if !has_time && fields.len() > 7 {
            fields[7] = "-";
        }
        fields.join(" ")
    };
    lines.iter().map(|line| cut(line)).collect()
}

fn script_for_image(place: &Place) -> String {
    let script = SCRIPT
        .replace("<input", &format!("<{}", place.text("input")))
        .replace("< 'in put'", &format!("< '{}'", place.text("in put")));
    let path = place.path("script");
    fs::write(&path, script).expect("space");
    text(&path).to_owned()
}

/// As the programs of the same names do it on the host; and so the kernel and e2fsck see it.
#[test]
fn verbs_do_what_the_programs_of_their_names_do() {
    require!(
        Need::Root,
        Need::Program("setfacl"),
        Need::Program("setfattr"),
        Need::Program("e2fsck")
    );
    let place = Place::new();
    small_tree(&place);
    let script = script_for_image(&place);
    for (image, options) in [
        ("plain", &[][..]),
        ("atomic", &["--atomic"]),
        ("copy", &["--atomic=copy"]),
    ] {
        let (tree, path) = (place.text("small"), place.text(image));
        printed(&mut fourscore(&[
            "build", &tree, "--size", "16M", "-o", &path,
        ]));
        let edit = [&["edit", &path][..], options, &["-f", &script]].concat();
        printed(&mut fourscore(&edit));
        assert_clean(&place.path(image));
    }
    in_shell(&place.path("small"), &place);
    let of_host = printed(&mut fourscore(&[
        "walk",
        "--hash",
        "--host",
        &place.text("small"),
    ]));
    let expected = comparable(&of_host);
    assert!(expected.len() > 15, "{expected:?}");
    for image in ["plain", "atomic", "copy"] {
        let walk = printed(&mut fourscore(&["walk", "--hash", &place.text(image)]));
        pretty(&comparable(&walk), &expected, image);
        let mounted = KernelMount::new(&place.path(image), Access::ReadOnly, "").expect("a mount");
        let host = printed(&mut fourscore(&[
            "walk",
            "--hash",
            "--host",
            text(mounted.path()),
        ]));
        mounted.unmount().expect("unmounted");
        pretty(&comparable(&host), &expected, image);
    }
}

#[track_caller]
fn pretty(found: &[String], expected: &[String], image: &str) {
    let only = |one: &[String], other: &[String]| {
        let lines = one.iter().filter(|line| !other.contains(line));
        lines.cloned().collect::<Vec<_>>().join("\n")
    };
    assert!(
        found == expected,
        "{image}, only in the image:\n{}\nonly on the host:\n{}",
        only(found, expected),
        only(expected, found)
    );
}

/// An image with a few names, as `edit` finds it in the tests below.
fn image(place: &Place) -> String {
    small_tree(place);
    let etc = place.path("small/etc");
    fs::create_dir(&etc).expect("space");
    fs::write(etc.join("passwd"), "root:x:0:0::/:\nanna:x:1000:100::/:\n").expect("space");
    fs::write(etc.join("group"), "staff:x:50:\n").expect("space");
    let (tree, path) = (place.text("small"), place.text("disk"));
    printed(&mut fourscore(&[
        "build", &tree, "--size", "16M", "-o", &path,
    ]));
    path
}

fn edit(image: &str, words: &[&str]) {
    printed(&mut fourscore(&[&["edit", image], words].concat()));
}

fn stat(image: &str, path: &str) -> serde_json::Value {
    let json = printed(&mut fourscore(&["stat", "--json", image, path]));
    serde_json::from_str(&json).expect("JSON")
}

/// A change of a command line goes on after a path at which it fails, as coreutils do; that of a
/// script ends, and an atomic one leaves nothing.
#[test]
fn a_change_goes_on_with_the_other_paths() {
    require!(Need::Program("e2fsck"));
    let place = Place::new();
    let image = image(&place);
    let failed = |words: &[&str], missing: &[&str]| {
        let (status, message) = failing(&[&["edit", &image], words].concat());
        assert_eq!(status, Some(1), "{words:?}: {message}");
        assert_eq!(message.lines().count(), missing.len(), "{message}");
        for path in missing {
            let line = format!("fourscore: {image}: {path}: ");
            assert!(message.contains(&line), "{message}");
        }
    };
    let mode = |path: &str| stat(&image, path)["mode"].clone();
    let exists = |path: &str| failing(&["stat", &image, path]).0 == Some(0);
    failed(&["mkdir", "/a", "/none/b", "/c", "/c"], &["/none/b", "/c"]);
    assert!(exists("/a") && exists("/c"));
    failed(&["touch", "/c/1", "/none/2", "/c/3"], &["/none/2"]);
    failed(&["truncate", "-s", "7", "/c/1", "/a", "/c/3"], &["/a"]);
    assert_eq!(stat(&image, "/c/3")["size_bytes"], 7);
    failed(
        &["chmod", "600", "/none", "/c/1", "/none*", "/c/3"],
        &["/none", "/none*"],
    );
    assert_eq!(mode("/c/1"), mode("/c/3"));
    failed(&["chown", "7", "/none", "/c/3"], &["/none"]);
    assert_eq!(stat(&image, "/c/3")["uid"], 7);
    failed(&["chattr", "+d", "/none", "/c/3"], &["/none"]);
    failed(
        &["setfattr", "-n", "user.a", "-v", "b", "/none", "/c/3"],
        &["/none"],
    );
    failed(&["setfacl", "-m", "u:7:r", "/none", "/c/3"], &["/none"]);
    failed(&["mv", "/none", "/c/1", "/a"], &["/none"]);
    assert!(exists("/a/1"));
    failed(
        &["rmdir", "/none", "/a", "/c", "/none2"],
        &["/none", "/a", "/c", "/none2"],
    );
    failed(&["rm", "/none", "/a", "/a/1", "/c/3"], &["/none", "/a"]);
    assert!(!exists("/a/1") && !exists("/c/3"));
    for first in [&["--atomic"][..], &["--atomic=copy"], &[]] {
        let script = place.path("script");
        fs::write(&script, "mkdir /none/x /d\n").expect("space");
        let words = match first {
            [] => vec!["edit", &image, "-f", text(&script)],
            first => [&["edit", &image], first, &["mkdir", "/none/x", "/d"]].concat(),
        };
        let (status, message) = failing(&words);
        assert_eq!((status, message.lines().count()), (Some(1), 1), "{message}");
        assert!(!exists("/d"), "{first:?}");
    }
    assert_clean(Path::new(&image));
}

/// A change of a tree goes on after an object at which it fails, as by coreutils; that of a script
/// ends, and an atomic one leaves nothing.
#[test]
fn a_change_of_a_tree_goes_on_after_a_failure() {
    require!(Need::Program("e2fsck"));
    let place = Place::new();
    let image = image(&place);
    edit(&image, &["mkdir", "/d", "/d/b", "/d/y"]);
    let files = ["/d/a", "/d/b/f", "/d/m", "/d/y/f", "/d/z"];
    edit(&image, &[&["touch"], &files[..]].concat());
    let immutable = ["/d/a", "/d/b", "/d/z"];
    edit(&image, &[&["chattr", "+i"], &immutable[..]].concat());
    let failed = |words: &[&str], lines: usize| {
        let (status, message) = failing(&[&["edit", &image], words].concat());
        assert_eq!(status, Some(1), "{words:?}: {message}");
        assert_eq!(message.lines().count(), lines, "{words:?}: {message}");
        for path in &immutable[..lines.min(3)] {
            let line = format!("fourscore: {image}: {path}: ");
            assert!(
                lines == 1 || message.contains(&line),
                "{words:?}: {message}"
            );
        }
    };
    let state = |path: &str| {
        let found = stat(&image, path);
        ["mode", "uid", "xattrs"].map(|key| found[key].clone())
    };
    for change in [
        &["chmod", "-R", "711"][..],
        &["chown", "-R", "7"],
        &["setfacl", "-R", "-m", "u:8:rx"],
    ] {
        let before = ["/d", "/d/b/f", "/d/m", "/d/y", "/d/y/f"].map(|path| (path, state(path)));
        for atomic in ["--atomic", "--atomic=copy"] {
            failed(&[&[atomic], change, &["/d"]].concat(), 1);
        }
        let same = { before.iter() }.all(|(path, before)| state(path) == *before);
        assert!(same, "{change:?}");
        let kept = immutable.map(state);
        failed(&[change, &["/d"]].concat(), 3);
        for (path, before) in before {
            assert_ne!(state(path), before, "{change:?} {path}");
        }
        assert_eq!(immutable.map(state), kept, "{change:?}");
    }
    let script = place.path("script");
    fs::write(&script, "chmod -R 700 /d\n").expect("space");
    failed(&["-f", text(&script)], 1);
    assert_clean(Path::new(&image));
}

#[test]
fn each_verb_is_a_command() {
    require!(Need::Program("e2fsck"), Need::Program("dumpe2fs"));
    let place = Place::new();
    let disk = image(&place);
    let mut child = fourscore(&["edit", &disk, "write", "/etc/hostname"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(b"eighty\n").expect("it reads");
    drop(stdin);
    assert!(child.wait().expect("it ends").success());
    assert_eq!(
        printed(&mut fourscore(&["cat", &disk, "/etc/hostname"])),
        "eighty\n"
    );
    edit(&disk, &["chown", "anna:staff", "/etc/hostname"]);
    edit(&disk, &["chmod", "u+x", "/etc/hostname"]);
    edit(&disk, &["chattr", "+id", "/etc/hostname"]);
    let found = stat(&disk, "/etc/hostname");
    assert_eq!((&found["uid"], &found["gid"]), (&1000.into(), &50.into()));
    assert_eq!(found["mode"], "0744");
    let flags = found["flags"].to_string();
    assert!(
        flags.contains("IMMUTABLE_FL") && flags.contains("NODUMP_FL"),
        "{flags}"
    );
    edit(&disk, &["chattr", "-i", "/etc/hostname"]);
    edit(&disk, &["chown", "anna:", "/etc/hostname"]);
    edit(&disk, &["setfacl", "-m", "u:anna:r", "/text.txt"]);
    assert_eq!(stat(&disk, "/etc/hostname")["gid"], 100);
    edit(&disk, &["label", "fresh"]);
    edit(&disk, &["uuid", "01234567-89ab-cdef-0123-456789abcdef"]);
    edit(&disk, &["mv", "-T", "/text.txt", "/renamed"]);
    edit(&disk, &["rm", "-r", "/folder"]);
    let header = dumpe2fs_header(Path::new(&disk)).expect("dumpe2fs runs");
    assert_eq!(header["Filesystem volume name"], "fresh");
    assert_eq!(
        header["Filesystem UUID"],
        "01234567-89ab-cdef-0123-456789abcdef"
    );
    let before = header["Filesystem UUID"].clone();
    edit(&disk, &["uuid", "random"]);
    let header = dumpe2fs_header(Path::new(&disk)).expect("dumpe2fs runs");
    assert_ne!(header["Filesystem UUID"], before);
    assert_clean(Path::new(&disk));
}

#[test]
fn a_file_is_not_lost_to_a_link_to_itself() {
    require!(Need::Program("e2fsck"));
    let place = Place::new();
    let disk = image(&place);
    let same = |one: &str| format!("DISK: {one}: and /folder/../text.txt are the same file");
    let itself = same("/text.txt");
    all_are_refused(
        &disk,
        &[
            (
                &["ln", "-f", "/text.txt", "/folder/../text.txt"],
                1,
                &itself,
            ),
            (
                &["ln", "-sf", "/text.txt", "/folder/../text.txt"],
                1,
                &itself,
            ),
            (&["mv", "/text.txt", "/folder/../text.txt"], 1, &itself),
            (
                &["touch", "-h", "/none"],
                1,
                "DISK: /none: no such file or directory",
            ),
        ],
    );
    edit(&disk, &["touch", "-h", "-c", "/none"]);
    edit(&disk, &["ln", "-f", "/text.txt", "/empty"]);
    edit(&disk, &["ln", "-f", "/text.txt", "/empty"]);
    assert_eq!(stat(&disk, "/text.txt")["links"], 2);
    let both = "DISK: /text.txt: and /empty are the same file";
    all_are_refused(&disk, &[(&["mv", "/text.txt", "/empty"], 1, both)]);
    edit(&disk, &["ln", "-sf", "/text.txt", "/empty"]);
    assert_eq!(stat(&disk, "/empty")["target"], "/text.txt");
    assert_eq!(
        printed(&mut fourscore(&["cat", &disk, "/text.txt"])),
        "text\n"
    );
    let names = printed(&mut fourscore(&["ls", "-a", &disk, "/"]));
    assert!(!names.contains(".ln"), "{names}");
    assert_clean(Path::new(&disk));
}

#[test]
fn a_script_stops_at_its_first_error() {
    require!(Need::Program("e2fsck"));
    let place = Place::new();
    let disk = image(&place);
    let script = place.text("script");
    fs::write(
        &script,
        "mkdir /one\n\n# two\nmkdir /two/three\nmkdir /four\n",
    )
    .expect("space");
    for options in [&["--atomic"][..], &["--atomic=copy"], &[]] {
        let before = fs::read(&disk).expect("the image");
        let arguments = [&["edit", &disk][..], options, &["-f", &script]].concat();
        let (status, said) = failing(&arguments);
        assert_eq!(status, Some(1));
        let expected = format!("fourscore: {script}:4: /two/three: no such file or directory\n");
        assert_eq!(said, expected);
        let is_unchanged = fs::read(&disk).expect("the image") == before;
        assert_eq!(is_unchanged, !options.is_empty(), "{options:?}");
    }
    assert_eq!(stat(&disk, "/one")["type"], "directory");
    assert_eq!(failing(&["stat", &disk, "/four"]).0, Some(1));
    assert_clean(Path::new(&disk));
}

#[test]
fn a_script_comes_from_standard_input() {
    let place = Place::new();
    let disk = image(&place);
    for (arguments, script, status, expected) in [
        (&["-"][..], "mkdir /a\n", 0, ""),
        (&["-f", "-"], "mkdir /b", 0, ""),
        (
            &["-"],
            "mkdir /c\nwrite /d\n",
            2,
            "fourscore: standard input:2: write: has no data: standard input is the script; give \
             <FILE\n",
        ),
        (
            &["-"],
            "mkdir /e <x\n",
            2,
            "fourscore: standard input:1: mkdir: takes no <FILE; only write does\n",
        ),
        (
            &["-"],
            "\nrn /e\n",
            2,
            "fourscore: standard input:2: rn: unrecognized subcommand 'rn'\n",
        ),
        (
            &["-"],
            "rm\n",
            2,
            "fourscore: standard input:1: rm: the following required arguments were not \
             provided: <PATH>...\n",
        ),
        (
            &["-"],
            "rm 'x\n",
            1,
            "fourscore: standard input:2: a quote is not closed\n",
        ),
    ] {
        let mut child = fourscore(&[&["edit", &disk], arguments].concat())
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it runs");
        let mut stdin = child.stdin.take().expect("a pipe");
        stdin.write_all(script.as_bytes()).expect("it reads");
        drop(stdin);
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(String::from_utf8_lossy(&output.stderr), expected);
        assert_eq!(output.status.code(), Some(status), "{script}");
    }
    for path in ["/a", "/b", "/c"] {
        assert_eq!(stat(&disk, path)["type"], "directory");
    }
}

/// Calls of `edit`, the exit status, and the message, in which DISK is the image.
type Refusals<'a> = &'a [(&'a [&'a str], i32, &'a str)];

/// One line, with the object that is at fault.
#[track_caller]
fn all_are_refused(disk: &str, refusals: Refusals<'_>) {
    for (words, status, expected) in refusals {
        let (found, said) = failing(&[&["edit", disk][..], words].concat());
        let expected = format!("fourscore: {}\n", expected.replace("DISK", disk));
        assert_eq!((said, found), (expected, Some(*status)), "{words:?}");
    }
}

#[test]
fn errors_about_names_name_the_object_at_fault() {
    let place = Place::new();
    let refusals: Refusals<'_> = &[
        (
            &["rm", "/none"],
            1,
            "DISK: /none: no such file or directory",
        ),
        (
            &["rm", "/etc"],
            1,
            "DISK: /etc: is a directory (use -r to remove it)",
        ),
        (&["rmdir", "/etc"], 1, "DISK: /etc: directory not empty"),
        (&["mkdir", "/etc"], 1, "DISK: /etc: file exists"),
        (
            &["mv", "/none", "/x"],
            1,
            "DISK: /none: no such file or directory",
        ),
        (
            &["mv", "/empty", "/none/x"],
            1,
            "DISK: /none/x: no such file or directory",
        ),
        (
            &["mv", "/empty", "/text.txt", "/x"],
            1,
            "DISK: /x: is not a directory, which several sources need",
        ),
        (
            &["ln", "/none", "/x"],
            1,
            "DISK: /none: no such file or directory",
        ),
        (
            &["ln", "-s", "a", "/empty"],
            1,
            "DISK: /empty: file exists (use -f to replace it)",
        ),
        (
            &["ln", "/etc", "/x"],
            1,
            "DISK: /etc: operation not permitted",
        ),
        (
            &["mknod", "/x", "b", "1"],
            2,
            "DISK: mknod: a device needs MAJOR and MINOR",
        ),
    ];
    all_are_refused(&image(&place), refusals);
}

#[test]
fn errors_about_attributes_say_what_would_work() {
    let place = Place::new();
    let refusals: Refusals<'_> = &[
        (
            &["chmod", "rwx", "/etc"],
            2,
            "DISK: chmod 'rwx': is no mode; give an octal number, or a change as in u=rwX,go-w",
        ),
        (
            &["chown", "berta", "/etc"],
            1,
            "DISK: user 'berta': is not in /etc/passwd of the image (give the number, or a name \
             that the image has)",
        ),
        (
            &["chattr", "+z", "/etc"],
            2,
            "DISK: chattr 'z': is no flag; the letters are those of lsattr: aAcdDFijmPsStTux",
        ),
        (
            &["touch", "-d", "soon", "/x"],
            2,
            "DISK: -d 'soon': is no time; give @SECONDS, 2026-01-31, or 2026-01-31T12:00:00Z",
        ),
        (
            &["truncate", "-s", "x", "/x"],
            2,
            "DISK: -s 'x': is no size; give bytes with K, M, G or T, and + or - to change the size",
        ),
        (
            &["setfacl", "-m", "q:1:r", "/etc"],
            2,
            "DISK: 'q:1:r': is no entry of an access control list; give [d:]u:NAME:rwx, g:NAME:rx, \
             m::rw or o::r",
        ),
        (
            &["setfattr", "-x", "user.a", "/etc"],
            1,
            "DISK: /etc: user.a: no such attribute",
        ),
        (&["write", "/etc"], 1, "DISK: /etc: is a directory"),
        (
            &["label", "more than sixteen bytes"],
            1,
            "DISK: label: a label of 16 bytes at most",
        ),
        (
            &[],
            2,
            "edit: give a change, as in `fourscore edit disk.img rm /x`, -f FILE or -",
        ),
    ];
    all_are_refused(&image(&place), refusals);
}

/// What does not fit into a transaction is refused whole, and made in a copy.
#[test]
fn too_much_for_a_transaction_is_made_in_a_copy() {
    require!(Need::Program("e2fsck"), Need::Program("mke2fs"));
    let place = Place::new();
    let disk = place.text("disk");
    let old = place.text("old");
    printed(&mut fourscore(&[
        "mkfs", "-q", "-J", "size=4", &disk, "64M",
    ]));
    // A file over which much is written, so that its blocks are in use.
    fs::write(&old, vec![1; 40 << 20]).expect("space");
    let script = place.text("script");
    // All of it lies in blocks that were free, so it is not in the transaction.
    fs::write(&script, format!("write /big <{old}\n")).expect("space");
    edit(&disk, &["--atomic", "-f", &script]);
    fs::write(&old, vec![2; 40 << 20]).expect("space");
    fs::write(&script, format!("rm /big\nwrite /big <{old}\nmkdir /x\n")).expect("space");
    let before = fs::read(&disk).expect("the image");
    let (status, said) = failing(&["edit", &disk, "--atomic", "-f", &script]);
    assert_eq!(status, Some(1), "{said}");
    let ends = "(nothing was changed; use --atomic=copy, which edits a copy of the image and \
                replaces it)\n";
    let begins = format!("fourscore: {disk}: the changes take ");
    assert!(said.starts_with(&begins) && said.ends_with(ends), "{said}");
    assert!(fs::read(&disk).expect("the image") == before);
    let link = place.path("link");
    symlink(&disk, &link).expect("space");
    let old_inode = fs::metadata(&disk).expect("the image").ino();
    edit(text(&link), &["--atomic=copy", "-f", &script]);
    assert_ne!(fs::metadata(&disk).expect("the image").ino(), old_inode);
    assert!(fs::symlink_metadata(&link).expect("the link").is_symlink());
    assert_eq!(stat(&disk, "/big")["size_bytes"], 40 << 20);
    assert_clean(Path::new(&disk));
    let left: Vec<_> = fs::read_dir(place.path(""))
        .expect("a folder")
        .flatten()
        .collect();
    let is_left = |name: &str| name.starts_with('.');
    assert!(
        !left
            .iter()
            .any(|entry| is_left(&entry.file_name().to_string_lossy()))
    );
}

#[test]
fn what_cannot_be_atomic_says_why() {
    require!(Need::Program("mke2fs"));
    let place = Place::new();
    let disk = place.text("disk");
    let unjournaled = ["mkfs", "-q", "-t", "ext2", &disk, "8M"];
    printed(&mut fourscore(&unjournaled));
    let (status, said) = failing(&["edit", &disk, "--atomic", "mkdir", "/x"]);
    assert_eq!(status, Some(1));
    assert!(
        said.contains("it has no journal") && said.contains("--atomic=copy"),
        "{said}"
    );
    edit(&disk, &["--atomic=copy", "mkdir", "/x"]);
    assert_eq!(stat(&disk, "/x")["type"], "directory");
    let old = [
        "mkfs",
        "-q",
        "-F",
        "-O",
        "^metadata_csum,uninit_bg",
        &disk,
        "8M",
    ];
    printed(&mut fourscore(&old));
    let (status, said) = failing(&["edit", &disk, "uuid", "random"]);
    assert_eq!(status, Some(1));
    assert!(
        said.contains("depend on the UUID (use tune2fs -U"),
        "{said}"
    );
}

/// A thousand changes in one mount, with and without --atomic.
#[test]
fn a_thousand_changes_are_one_mount() {
    require!(Need::Program("e2fsck"));
    let place = Place::new();
    let disk = image(&place);
    let mut script = String::from("mkdir /many\n");
    for nr in 0..333 {
        let file = format!("/many/file-{nr}");
        script.push_str(&format!(
            "touch -d @{nr} {file}\nchmod 600 {file}\nln -s x {file}.link\n"
        ));
    }
    let path = place.text("script");
    fs::write(&path, script).expect("space");
    edit(&disk, &["--atomic", "-f", &path]);
    let listed = printed(&mut fourscore(&["ls", &disk, "/many"]));
    assert_eq!(listed.lines().count(), 666);
    let remove = format!("rm -r /many\n{}", "mkdir -p /a/b\n".repeat(999));
    fs::write(&path, remove).expect("space");
    edit(&disk, &["-f", &path]);
    assert_eq!(failing(&["ls", &disk, "/many"]).0, Some(1));
    assert_clean(Path::new(&disk));
    // The image can be used by others at once.
    let said = tools::run("debugfs", &["-R".as_ref(), "ls /a".as_ref(), disk.as_ref()]);
    assert!(said.expect("debugfs runs").contains(" b"));
}
