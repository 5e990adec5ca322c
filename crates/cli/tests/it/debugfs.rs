//! The command under the names of other programs of e2fsprogs beside these programs: the same
//! requests print the same, and change an image in the same way.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use fourscore_testkit::oracle::e2fsck;
use fourscore_testkit::tools::{self, Need};
use fourscore_testkit::{require, scratch};

use crate::common::text;

/// A folder with an image of a small tree, and the command under other names.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = scratch::folder().expect("a folder");
        let tree = folder.path().join("tree");
        fs::create_dir_all(tree.join("dir/sub")).expect("room");
        fs::write(tree.join("hello"), "hello\n").expect("room");
        fs::hard_link(tree.join("hello"), tree.join("dir/hard")).expect("room");
        fs::write(tree.join("big"), [5; 70_001]).expect("room");
        let set_ids = fs::Permissions::from_mode(0o6755);
        fs::set_permissions(tree.join("big"), set_ids).expect("its owner");
        symlink("hello", tree.join("link")).expect("room");
        symlink("x".repeat(80), tree.join("long")).expect("room");
        for name in ["debugfs", "dumpe2fs", "e2fsck", "fsck.ext4", "resize2fs"] {
            let command = env!("CARGO_BIN_EXE_fourscore");
            symlink(command, folder.path().join(name)).expect("room");
        }
        let place = Self { folder };
        let image = place.image();
        let mut mke2fs = tools::command("mke2fs").expect("found before");
        mke2fs.args([
            "-q",
            "-F",
            "-t",
            "ext4",
            "-d",
            text(&tree),
            text(&image),
            "32M",
        ]);
        tools::stdout_of(&mut mke2fs).expect("mke2fs runs");
        let set = [
            "ea_set /hello user.a text",
            "ea_set -f HOST /hello user.bin",
        ];
        fs::write(place.folder.path().join("host"), [0, 1, 2, 255]).expect("room");
        for request in set {
            place.run("debugfs", Whose::Theirs, &["-w", "-R", request], &image);
        }
        place
    }

    fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    /// Runs `program` of e2fsprogs, or the command under its name.
    fn run(&self, program: &str, whose: Whose, arguments: &[&str], image: &Path) -> Output {
        let mut command = match whose {
            Whose::Ours => Command::new(self.folder.path().join(program)),
            Whose::Theirs => tools::command(program).expect("found before"),
        };
        let host = self.folder.path().join("host");
        for argument in arguments {
            command.arg(argument.replace("HOST", text(&host)));
        }
        command.arg(image).env("TZ", "UTC").env("LC_ALL", "C");
        command.stdin(Stdio::null()).output().expect("it runs")
    }

    fn request(&self, whose: Whose, request: &str) -> (String, Option<i32>) {
        let output = self.run("debugfs", whose, &["-R", request], &self.image());
        let printed = comparable(&String::from_utf8(output.stdout).expect("text"));
        let printed = match request.starts_with("ncheck") {
            true => as_a_set(&printed),
            false => printed,
        };
        (printed, output.status.code())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    Ours,
    Theirs,
}

/// Without empty lines, the lines of `stat` that the command does not print, and blanks at the ends
/// of lines.
fn comparable(printed: &str) -> String {
    let left_out = ["Size of extra inode fields:", "Inode checksum:"];
    let lines = printed.lines().map(str::trim_end);
    let lines = lines
        .filter(|line| !line.is_empty() && !left_out.iter().any(|start| line.starts_with(start)));
    lines.collect::<Vec<_>>().join("\n")
}

/// The lines of `ncheck` in one order. debugfs writes two slashes after the root.
fn as_a_set(printed: &str) -> String {
    let mut lines: Vec<_> = { printed.lines() }
        .map(|line| line.replace("//", "/"))
        .collect();
    lines.sort();
    lines.join("\n")
}

macro_rules! needs {
    () => {
        require!(
            Need::Program("debugfs"),
            Need::Program("dumpe2fs"),
            Need::Program("mke2fs"),
            Need::Program("e2fsck")
        )
    };
}

#[test]
fn requests_print_what_debugfs_prints() {
    needs!();
    let place = Place::new();
    let requests = [
        "ls -l /",
        "ls -p /",
        "ls -p dir",
        "ls -l <2>",
        "stat /hello",
        "stat /big",
        "stat /dir",
        "stat /link",
        "stat <12>",
        "cat /hello",
        "cat <14>",
        "blocks /big",
        "bmap /big 7",
        "bmap /big 7000",
        "bmap /big 0x7",
        "ncheck 12 13 14",
        "testi /hello",
        "testi <40>",
        "ea_list /hello",
        "ea_list /big",
        "ea_get /hello user.a",
        "ea_get -x /hello user.a",
        "ea_get /hello user.bin",
        "ea_get -V /hello user.a",
        "features",
        "pwd",
        // Requests that fail, and one that is not known.
        "cat /missing",
        "ea_get /hello user.none",
        "mkdir /new",
        "cat",
        "nonsense",
    ];
    for request in requests {
        let (ours, theirs) = (
            place.request(Whose::Ours, request),
            place.request(Whose::Theirs, request),
        );
        assert_eq!(ours, theirs, "{request}");
    }
    // comparable() takes the line break for nothing.
    let [ours, theirs] = [Whose::Ours, Whose::Theirs].map(|whose| {
        let request = ["-R", "ea_get -V /hello user.a"];
        place.run("debugfs", whose, &request, &place.image()).stdout
    });
    assert_eq!(ours, theirs);
    let request = OsStr::from_bytes(b"stat /no\xff");
    let output = Command::new(place.folder.path().join("debugfs"))
        .arg("-R")
        .arg(request)
        .arg(place.image())
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

/// `ls` escapes the bytes of names that are no visible characters, and `ls -p` does not.
#[test]
fn names_are_printed_as_debugfs_prints_them() {
    needs!();
    let folder = scratch::folder().expect("a folder");
    let tree = folder.path().join("tree");
    fs::create_dir(&tree).expect("room");
    let names: [&[u8]; 7] = [
        b"a\nb",
        b"c\x1b[31md",
        b"e\xff\x80f",
        b"g\\h",
        b"t\ti",
        b"u\xc3\xbc",
        b"q\"r s\x7f",
    ];
    for name in names {
        fs::write(tree.join(OsStr::from_bytes(name)), "x").expect("room");
    }
    let ours = folder.path().join("debugfs");
    symlink(env!("CARGO_BIN_EXE_fourscore"), &ours).expect("room");
    let image = folder.path().join("image");
    let words = [
        "-q",
        "-F",
        "-t",
        "ext4",
        "-d",
        text(&tree),
        text(&image),
        "16M",
    ];
    let mut mke2fs = tools::command("mke2fs").expect("found before");
    tools::stdout_of(mke2fs.args(words)).expect("mke2fs runs");
    for request in ["ls", "ls -l", "ls -p"] {
        let theirs = tools::command("debugfs").expect("found before");
        let [ours, theirs] = [Command::new(&ours), theirs].map(|mut command| {
            let command = command.env("TZ", "UTC").env("LC_ALL", "C");
            let run = command.args(["-R", request, text(&image)]).output();
            let printed = run.expect("it runs").stdout;
            match request {
                // The lengths of entries of debugfs are those with what was removed behind them.
                "ls" => names_of_short_list(&printed),
                _ => vec![printed.trim_ascii_end().to_vec()],
            }
        });
        assert_eq!(ours, theirs, "{request}");
    }
}

/// The words of `ls` that are no numbers.
fn names_of_short_list(printed: &[u8]) -> Vec<Vec<u8>> {
    let words = printed.split(u8::is_ascii_whitespace);
    let is_name = |word: &&[u8]| word.iter().any(|byte| !b"0123456789()".contains(byte));
    words.filter(is_name).map(<[u8]>::to_vec).collect()
}

#[test]
fn dumpe2fs_prints_what_dumpe2fs_prints() {
    needs!();
    let place = Place::new();
    for arguments in [&["-h"][..], &[]] {
        let [ours, theirs] = [Whose::Ours, Whose::Theirs].map(|whose| {
            let output = place.run("dumpe2fs", whose, arguments, &place.image());
            assert!(output.status.success());
            comparable(&String::from_utf8(output.stdout).expect("text"))
        });
        assert_eq!(ours, theirs, "{arguments:?}");
    }
}

#[test]
fn changes_leave_what_debugfs_leaves() {
    needs!();
    let place = Place::new();
    let script = place.folder.path().join("script");
    let host = text(&place.folder.path().join("host")).to_owned();
    // Not `ln`, whose link debugfs does not count.
    let requests = format!(
        "# a note\n\
         mkdir /new\n\
         ea_rm /hello user.a\n\
         rm /big\n\
         rm /dir/hard\n\
         rmdir /dir/sub\n\
         cd /new\n\
         write {host} copy\n\
         mknod fifo p\n\
         mknod dev c 5 1\n\
         symlink way \"/a b\"\n\
         ea_set copy user.k v\n\
         ea_set -f {host} copy security.capability\n\
         sif copy mode 0106755\n\
         sif copy uid 1000\n\
         sif copy gid 0x10\n\
         sif copy mtime 20260203040506\n"
    );
    fs::write(&script, requests).expect("room");
    let [ours, theirs] = [Whose::Ours, Whose::Theirs].map(|whose| {
        let image = place.folder.path().join("changed");
        fs::copy(place.image(), &image).expect("room");
        let output = place.run("debugfs", whose, &["-w", "-f", text(&script)], &image);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let printed = String::from_utf8(output.stdout).expect("text");
        e2fsck(&image).expect("a sound image");
        let mut state = Vec::new();
        let requests = [
            "ls -p /",
            "ls -p /new",
            "ls -p /dir",
            "ea_list /new/copy",
            "cat /new/copy",
        ];
        for request in requests {
            let shown = place.run("debugfs", Whose::Theirs, &["-R", request], &image);
            state.push(without_numbers(&String::from_utf8_lossy(&shown.stdout)));
        }
        let stat = place.run("debugfs", Whose::Theirs, &["-R", "stat /new/copy"], &image);
        let stat = String::from_utf8_lossy(&stat.stdout).into_owned();
        let mtime = stat
            .lines()
            .find(|line| line.starts_with(" mtime"))
            .map(str::to_owned);
        (echoed(&printed), state, mtime)
    });
    assert_eq!(ours, theirs);
}

/// What a script prints, without the numbers of new inodes, which the allocators choose.
fn echoed(printed: &str) -> String {
    let line = |line: &str| match line.split_once("Allocated inode: ") {
        Some((_, number)) if number.parse::<u32>().is_ok() => "Allocated inode".to_owned(),
        _ => line.to_owned(),
    };
    let lines = comparable(printed);
    lines.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// The lines of `ls -p` without the numbers of inodes, in the order of their names.
fn without_numbers(list: &str) -> Vec<String> {
    let line = |line: &str| match line.strip_prefix('/').and_then(|rest| rest.split_once('/')) {
        Some((_, rest)) => rest.to_owned(),
        None => line.to_owned(),
    };
    let mut lines: Vec<_> = list.lines().map(line).collect();
    lines.sort();
    lines
}

#[test]
fn a_link_is_counted_and_trees_are_copied_out() {
    needs!();
    let place = Place::new();
    let image = place.image();
    let linked = place.run(
        "debugfs",
        Whose::Ours,
        &["-w", "-R", "ln /hello /dir/third"],
        &image,
    );
    assert!(linked.status.success());
    e2fsck(&image).expect("a sound image");
    let out = place.folder.path().join("out");
    fs::create_dir(&out).expect("room");
    let request = format!("rdump /dir /hello {}", text(&out));
    let copied = place.run("debugfs", Whose::Ours, &["-R", &request], &image);
    assert!(
        copied.status.success() && copied.stderr.is_empty(),
        "{copied:?}"
    );
    for name in ["hello", "dir/hard", "dir/third"] {
        assert_eq!(fs::read(out.join(name)).expect("copied"), b"hello\n");
    }
    let request = format!("dump -p /big {}", text(&out.join("big")));
    place.run("debugfs", Whose::Ours, &["-R", &request], &image);
    assert_eq!(fs::read(out.join("big")).expect("copied"), [5; 70_001]);
}

#[test]
fn e2fsck_and_resize2fs_end_with_the_statuses_of_these_programs() {
    needs!();
    let place = Place::new();
    let image = place.folder.path().join("checked");
    let damages = [
        "",
        "set_inode_field /hello links_count 9",
        "set_bg 0 free_blocks_count 1",
    ];
    for damage in damages {
        for arguments in [
            &["-f", "-n"][..],
            &["-fp"],
            &["-f", "-y", "-C", "0"],
            &["-f"],
        ] {
            let [ours, theirs] = [Whose::Ours, Whose::Theirs].map(|whose| {
                fs::copy(place.image(), &image).expect("room");
                for request in [damage, "set_bg 0 checksum calc"] {
                    place.run("debugfs", Whose::Theirs, &["-w", "-R", request], &image);
                }
                let name = match whose {
                    Whose::Ours => "fsck.ext4",
                    Whose::Theirs => "e2fsck",
                };
                place.run(name, whose, arguments, &image).status.code()
            });
            // Without a terminal e2fsck cannot ask, and ends with an error of its operation.
            match arguments {
                ["-f"] => assert_eq!((ours, theirs), (Some(16), Some(8)), "{damage}"),
                _ => assert_eq!(ours, theirs, "{damage} {arguments:?}"),
            }
        }
    }
    let wrong = place.run("e2fsck", Whose::Ours, &["--no-such-option"], &image);
    assert_eq!(wrong.status.code(), Some(16));
    fs::copy(place.image(), &image).expect("room");
    let shrunk = place.run("resize2fs", Whose::Ours, &["-f", "-M"], &image);
    assert!(shrunk.status.success(), "{shrunk:?}");
    e2fsck(&image).expect("a sound image");
    let wrong = place.run("resize2fs", Whose::Ours, &["-M", "-P"], &image);
    assert_eq!(wrong.status.code(), Some(1));
}

/// The owner is set before the permissions: the host clears set-ID bits when the owner changes.
#[test]
fn a_dump_keeps_set_id_bits_with_the_owner() {
    needs!();
    require!(Need::Root);
    let place = Place::new();
    for request in [
        "sif /hello mode 0104751",
        "sif /hello uid 1234",
        "sif /hello gid 5678",
    ] {
        place.run(
            "debugfs",
            Whose::Theirs,
            &["-w", "-R", request],
            &place.image(),
        );
    }
    let out = place.folder.path().join("out");
    place.request(Whose::Ours, &format!("dump -p /hello {}", text(&out)));
    let found = fs::metadata(&out).expect("it was dumped");
    let found = (found.uid(), found.gid(), found.mode() & 0o7777);
    assert_eq!(found, (1234, 5678, 0o4751));
}
