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
pub(crate) struct Place {
    pub(crate) folder: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
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
        for name in [
            "debugfs",
            "dumpe2fs",
            "e2fsck",
            "e2label",
            "fsck.ext4",
            "resize2fs",
            "tune2fs",
        ] {
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

    pub(crate) fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    /// Runs `program` of e2fsprogs, or the command under its name.
    pub(crate) fn run(
        &self,
        program: &str,
        whose: Whose,
        arguments: &[&str],
        image: &Path,
    ) -> Output {
        let mut command = self.command(program, whose, arguments, image);
        command.stdin(Stdio::null()).output().expect("it runs")
    }

    fn command(&self, program: &str, whose: Whose, arguments: &[&str], image: &Path) -> Command {
        let mut command = match whose {
            Whose::Ours => Command::new(self.folder.path().join(program)),
            Whose::Theirs => tools::command(program).expect("found before"),
        };
        let host = self.folder.path().join("host");
        for argument in arguments {
            command.arg(argument.replace("HOST", text(&host)));
        }
        command.arg(image).env("TZ", "UTC").env("LC_ALL", "C");
        command
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
pub(crate) enum Whose {
    Ours,
    Theirs,
}

/// Without empty lines, the lines of `stat` that the command does not print, and blanks at the ends
/// of lines.
pub(crate) fn comparable(printed: &str) -> String {
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
            assert_eq!(ours, theirs, "{damage} {arguments:?}");
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

/// What e2fsck refuses has its status, and so has what the command does not do: an error of the
/// operation, as no check was made.
#[test]
fn options_of_e2fsck_have_its_statuses() {
    needs!();
    let place = Place::new();
    let image = place.image();
    let not_done = [
        "-D -y",
        "-Dfp",
        "-c -y",
        "-ck -p",
        "-l bad -p",
        "-E discard -p",
    ];
    for line in not_done {
        let arguments: Vec<&str> = line.split(' ').collect();
        let ours = place.run("e2fsck", Whose::Ours, &arguments, &image);
        let message = String::from_utf8_lossy(&ours.stderr);
        assert_eq!(ours.status.code(), Some(8), "{line}: {message}");
        assert!(message.contains("without it"), "{line}: {message}");
    }
    for line in [
        "-D",
        "-Dn",
        "-cn",
        "-l x -n",
        "-k",
        "-kn",
        "-ky",
        "-r",
        "-rn",
        "-rp",
        "-ry",
        "-P 1 -n",
        "-P 1 -y",
        "-P x -n",
        "-b x -n",
        "-B x -n",
        "-py",
        "-pn",
        "-yn",
        "-pan",
        "-Q",
        "-s",
        "-V",
        "-I 4 -n",
        "-E nodiscard -n",
        "-E none -n",
        "-b 7 -n",
        "-b 32768 -B 1024 -y",
        "-B 4096 -n",
        "-b 99999999 -n",
        "-ff -n",
        "-t -t -n",
        "-v -n",
    ] {
        let arguments: Vec<&str> = line.split(' ').collect();
        let [ours, theirs] = [Whose::Ours, Whose::Theirs].map(|whose| {
            let output = place.run("e2fsck", whose, &arguments, &image);
            output.status.code()
        });
        assert_eq!(ours, theirs, "{line}");
    }
}

/// With -b the backup is used even if the primary superblock is valid, and written over it.
#[test]
fn a_backup_of_the_superblock_is_used_as_by_e2fsck() {
    needs!();
    let place = Place::new();
    let image = place.folder.path().join("checked");
    let mut mke2fs = tools::command("mke2fs").expect("found before");
    mke2fs.args(["-q", "-F", "-t", "ext4", "-b", "1024", text(&image), "32M"]);
    tools::stdout_of(&mut mke2fs).expect("mke2fs runs");
    let fresh = fs::read(&image).expect("an image");
    let wrong = ["-w", "-R", "ssv blocks_per_group 4096"];
    for options in [&["-b", "8193"][..], &["-b", "8193", "-B", "1024"]] {
        for (damage, mode) in [(false, "-n"), (false, "-y"), (true, "-y"), (true, "-p")] {
            let statuses = [Whose::Ours, Whose::Theirs].map(|whose| {
                fs::write(&image, &fresh).expect("room");
                if damage {
                    place.run("debugfs", Whose::Theirs, &wrong, &image);
                }
                let arguments = [options, &["-f", mode]].concat();
                let output = place.run("e2fsck", whose, &arguments, &image);
                if mode == "-n" {
                    assert!(fs::read(&image).expect("an image") == fresh, "{output:?}");
                } else {
                    let clean = place.run("e2fsck", Whose::Theirs, &["-fn"], &image);
                    assert_eq!(clean.status.code(), Some(0), "{output:?}\n{clean:?}");
                }
                output.status.code()
            });
            assert_eq!(statuses[0], statuses[1], "{options:?} {mode} {damage}");
        }
    }
}

/// Backups do not say that the log is dirty: what is in it is replayed nevertheless.
#[test]
fn a_dirty_log_is_replayed_with_a_backup_of_the_superblock() {
    needs!();
    let place = Place::new();
    let image = place.folder.path().join("dirty");
    let mut mke2fs = tools::command("mke2fs").expect("found before");
    mke2fs.args(["-q", "-F", "-t", "ext4", "-b", "1024", text(&image), "32M"]);
    tools::stdout_of(&mut mke2fs).expect("mke2fs runs");
    let block = place.folder.path().join("block");
    fs::write(&block, [0x5a; 1024]).expect("room");
    let script = place.folder.path().join("script");
    let requests = format!("jo\njw -b 30000 {}\njc\n", text(&block));
    fs::write(&script, requests).expect("room");
    place.run(
        "debugfs",
        Whose::Theirs,
        &["-w", "-f", text(&script)],
        &image,
    );
    let dirty = fs::read(&image).expect("an image");
    assert_ne!(dirty[30_000 << 10..][..1024], [0x5a; 1024]);
    for whose in [Whose::Ours, Whose::Theirs] {
        fs::write(&image, &dirty).expect("room");
        let output = place.run("e2fsck", whose, &["-b", "8193", "-y"], &image);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let clean = fs::read(&image).expect("an image");
        assert_eq!(clean[30_000 << 10..][..1024], [0x5a; 1024], "{output:?}");
        assert!(e2fsck(&image).expect("it runs").is_clean());
    }
}

#[test]
fn images_that_cannot_be_opened_have_the_statuses_of_these_programs() {
    needs!();
    let place = Place::new();
    let file = |name: &str, bytes: usize| {
        let path = place.folder.path().join(name);
        fs::write(&path, vec![0; bytes]).expect("room");
        path
    };
    let images = [
        place.folder.path().join("missing"),
        file("empty", 0),
        file("short", 1500),
        file("zeros", 1 << 20),
        place.folder.path().to_owned(),
    ];
    for (program, arguments) in [
        ("e2fsck", &["-n"][..]),
        ("e2fsck", &["-y"]),
        ("e2fsck", &["-p"]),
        ("e2fsck", &[]),
        ("dumpe2fs", &[]),
        ("dumpe2fs", &["-h"]),
        ("dumpe2fs", &["-g"]),
        ("debugfs", &["-R", "ls"]),
        ("debugfs", &["-w", "-R", "mkdir /x"]),
        ("debugfs", &["-R", "quit"]),
        ("debugfs", &["-R", "nonsense"]),
        ("debugfs", &["-f", "no-such-script"]),
        ("tune2fs", &["-l"]),
        ("tune2fs", &["-L", "x"]),
        ("resize2fs", &[]),
        ("e2label", &[]),
    ] {
        for image in &images {
            let [ours, theirs] = [Whose::Ours, Whose::Theirs].map(|whose| {
                let output = place.run(program, whose, arguments, image);
                assert!(
                    !output.stderr.is_empty(),
                    "{program} {arguments:?} {image:?}"
                );
                output.status.code()
            });
            assert_eq!(ours, theirs, "{program} {arguments:?} {image:?}");
        }
    }
}

#[test]
fn labels_and_owners_are_taken_as_by_tune2fs() {
    needs!();
    require!(Need::Program("tune2fs"), Need::Program("e2label"));
    let place = Place::new();
    let long = "12345678901234567";
    for arguments in [
        &["-L", long][..],
        &["-L", "1234567890123456"],
        &["-u", "daemon"],
        &["-g", "daemon"],
        &["-u", "0x10", "-g", "010"],
        &["-u", "no-such-user"],
        &["-g", "12x"],
    ] {
        let [ours, theirs] = [Whose::Ours, Whose::Theirs].map(|whose| {
            let image = place.folder.path().join("tuned");
            fs::copy(place.image(), &image).expect("room");
            let output = place.run("tune2fs", whose, arguments, &image);
            let header = place.run("dumpe2fs", Whose::Theirs, &["-h"], &image);
            let header = String::from_utf8(header.stdout).expect("text");
            let mut lines: Vec<_> = header.lines().map(str::to_owned).collect();
            let starts = [
                "Filesystem volume name",
                "Reserved blocks uid",
                "Reserved blocks gid",
            ];
            lines.retain(|line| starts.iter().any(|start| line.starts_with(start)));
            (output.status.code(), output.stderr.is_empty(), lines)
        });
        assert_eq!(ours, theirs, "{arguments:?}");
    }
    let image = place.image();
    let label = |arguments: &[&str]| {
        let mut command = Command::new(place.folder.path().join("e2label"));
        command
            .arg(&image)
            .args(arguments)
            .output()
            .expect("it runs")
    };
    let set = label(&[long]);
    assert!(set.status.success() && !set.stderr.is_empty(), "{set:?}");
    assert_eq!(label(&[]).stdout, b"1234567890123456\n");
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

/// The exit status counts the unknown requests of a file, but those of standard input are not
/// counted. It ends at 255, and that of debugfs begins again at 0.
#[test]
fn unknown_requests_are_counted() {
    needs!();
    let place = Place::new();
    let image = place.image();
    let script = place.folder.path().join("script");
    let run = |whose, arguments: &[&str], input: &str| {
        fs::write(&script, input).expect("room");
        let mut command = place.command("debugfs", whose, arguments, &image);
        command.stdin(fs::File::open(&script).expect("a script"));
        command.output().expect("it runs").status.code()
    };
    let file = ["-f", text(&script)];
    for (arguments, input, expected) in [
        (&file[..], "none\nls\nneither\n", 2),
        (&file, "none\nls\nquit\n", 1),
        (&file, "none\nquit\nnone\n", 2),
        (&["-f", "-"], "q\nnone\n", 1),
        (&["-R", "quit"], "", 0),
        (&file, "stat /none\nstat\n# none\n\nls \"\n", 0),
        (&["-f", "-"], "none\nneither\nnone\n", 3),
        (&[], "none\nneither\n", 0),
        (&["-R", "none"], "", 1),
        (&["-R", "stat /none"], "", 0),
    ] {
        for whose in [Whose::Ours, Whose::Theirs] {
            let found = run(whose, arguments, input);
            assert_eq!(found, Some(expected), "{arguments:?} {input}");
        }
    }
    assert_eq!(run(Whose::Ours, &file, &"none\n".repeat(256)), Some(255));
}
