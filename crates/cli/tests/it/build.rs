//! `fourscore build`, and command lines of mke2fs that fill an image.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use fourscore_testkit::oracle::debugfs_write;
use fourscore_testkit::tools::{self, Need};
use fourscore_testkit::{LoopDevice, require};
use rustix::fs::{Mode, OFlags};

use crate::common::{failing, fourscore, printed, text, without_lost_and_found};
use crate::place::{Place, run, walk_of_host};

#[test]
fn an_image_of_a_directory_has_the_same_tree() {
    require!(Need::Program("e2fsck"));
    let place = Place::new();
    place.build("image", &[]);
    place.check("image").expect("clean");
    assert_eq!(place.walk("image"), walk_of_host(&place.tree()));
}

#[test]
fn an_extracted_archive_equals_the_source() {
    require!(Need::Program("tar"), Need::Program("e2fsck"), Need::Root);
    let place = Place::new();
    let all = [
        "--xattrs",
        "--xattrs-include=*",
        "--sparse",
        "--format=posix",
    ];
    let pack = [&all[..], &["-cf", "../in.tar", "."]].concat();
    run("tar", &pack, &place.tree()).expect("an archive");
    let (archive, image) = (place.text("in.tar"), place.text("image"));
    printed(&mut fourscore(&["build", &archive, "-o", &image]));
    place.check("image").expect("clean");
    assert_eq!(place.walk("image"), walk_of_host(&place.tree()));

    let mut extract = fourscore(&["extract", &image, "-"]);
    extract.stdout(fs::File::create(place.path("out.tar")).expect("space"));
    assert!(extract.status().expect("it runs").success());
    fs::create_dir(place.path("out")).expect("space");
    let unpack = ["-xpf", "../out.tar", "--xattrs", "--xattrs-include=*"];
    run("tar", &unpack, &place.path("out")).expect("an archive");
    fs::remove_dir(place.path("out/lost+found")).expect("every image has it");
    let theirs: Vec<String> = walk_of_host(&place.path("out"))
        .lines()
        .map(str::to_owned)
        .collect();
    let ours: Vec<String> = walk_of_host(&place.tree())
        .lines()
        .map(str::to_owned)
        .collect();
    // Removing lost+found has changed the time of the root.
    assert_eq!(ours[1..], theirs[1..]);
}

#[test]
fn a_pipe_and_a_file_give_the_same_tree_and_one_stream_the_same_image() {
    require!(Need::Program("tar"), Need::Program("gzip"));
    let place = Place::new();
    run("tar", &["-cf", "../in.tar", "."], &place.tree()).expect("an archive");
    run("gzip", &["-k", "in.tar"], place.0.path()).expect("an archive");
    let mut images = Vec::new();
    for (source, input) in [
        ("in.tar", None),
        ("in.tar.gz", None),
        ("-", Some("in.tar.gz")),
    ] {
        let source = match input {
            None => place.text(source),
            Some(_) => source.to_owned(),
        };
        let mut command = fourscore(&["build", &source, "-o", &place.text("image")]);
        command.env("SOURCE_DATE_EPOCH", "1700000000");
        if let Some(input) = input {
            let mut cat = Command::new("cat");
            let mut cat = cat
                .arg(place.path(input))
                .stdout(Stdio::piped())
                .spawn()
                .expect("cat");
            command.stdin(cat.stdout.take().expect("a pipe"));
            printed(&mut command);
            assert!(
                cat.wait().expect("it ran").success(),
                "the pipe was read to its end"
            );
        } else {
            printed(&mut command);
        }
        let bytes = fs::read(place.path("image")).expect("an image");
        images.push((place.walk("image"), bytes));
    }
    let [(of_file, _), (of_stream, stream), (of_pipe, pipe)] = &images[..] else {
        panic!("three images");
    };
    assert_eq!(of_file, of_stream);
    assert_eq!(of_file, of_pipe);
    assert!(stream == pipe, "the bytes differ");
}

#[test]
fn later_sources_replace_earlier_ones_and_owners_are_set() {
    require!(Need::Program("e2fsck"));
    let place = Place::new();
    let over = place.path("over");
    fs::create_dir_all(over.join("etc")).expect("space");
    fs::write(over.join("etc/passwd"), "changed").expect("space");
    fs::write(over.join("new.o"), "not this").expect("space");
    let over = text(&over);
    place.build(
        "image",
        &[
            over,
            "--owner",
            "7:8",
            "--exclude",
            "*.o",
            "--exclude",
            "/many",
        ],
    );
    place.check("image").expect("clean");
    let walk = place.walk("image");
    let owners = walk
        .lines()
        .map(|line| line.split(' ').skip(3).take(2).collect::<Vec<_>>());
    assert!(
        owners.clone().count() > 8 && owners.clone().all(|ids| ids == ["7", "8"]),
        "{walk}"
    );
    assert!(!walk.contains("many") && !walk.contains("new.o"), "{walk}");
    let found = printed(&mut fourscore(&[
        "cat",
        &place.text("image"),
        "/etc/passwd",
    ]));
    assert_eq!(found, "changed");
    let alias = printed(&mut fourscore(&["cat", &place.text("image"), "/etc/alias"]));
    assert!(alias.starts_with("root:"), "only the name was replaced");
}

/// A pattern of `--exclude` means one path, however it is written.
#[test]
fn patterns_of_exclude_are_normalized() {
    let place = Place::new();
    let walk = |pattern: &str| {
        place.build("image", &["-F", "--exclude", pattern]);
        place.walk("image")
    };
    for pattern in [
        "./etc",
        "././etc",
        "/etc",
        "//etc//",
        "etc/",
        "etc/.",
        "/./etc/./",
    ] {
        let walk = walk(pattern);
        assert!(!walk.contains("/etc"), "{pattern}: {walk}");
        assert!(walk.contains("/many "), "{pattern}: {walk}");
    }
    for pattern in ["etc//passwd", "./etc/passwd", "/etc/./passwd", "etc/pass*/"] {
        let walk = walk(pattern);
        assert!(!walk.contains("/etc/passwd"), "{pattern}: {walk}");
        assert!(walk.contains("/etc/alias "), "{pattern}: {walk}");
    }
    let (tree, image) = (place.text("tree"), place.text("image"));
    for wrong in ["/", ".", "./", "/./", "../etc", "etc/..", ".."] {
        let (status, message) = failing(&["build", &tree, "-o", &image, "--exclude", wrong]);
        assert_eq!(status, Some(2), "{wrong}: {message}");
    }
}

/// A pattern of `--exclude` that leaves nothing out is named, whatever the kind of the source.
#[test]
fn patterns_of_exclude_without_effect_are_named() {
    let place = Place::new();
    run("tar", &["-cf", "in.tar", "-C", "tree", "."], place.0.path()).expect("an archive");
    place.build("other", &[]);
    let manifest = place.path("manifest");
    fs::write(&manifest, "./added type=dir\n").expect("space");
    let manifest = text(&manifest);
    let patterns = [
        ("passwd", true),
        ("./etc/passwd", true),
        ("pass*", true),
        ("/passwd", false),
        ("/etc/none", false),
        ("added", true),
        ("bin\u{1b}", false),
    ];
    for source in ["tree", "in.tar", "other"].map(|name| place.text(name)) {
        let image = place.text("image");
        let mut command = fourscore(&["build", "-q", "-F", &source, "-o", &image]);
        command.args(["--manifest", manifest]);
        for (pattern, _) in patterns {
            command.args(["--exclude", pattern]);
        }
        let output = command.output().expect("it runs");
        assert!(output.status.success(), "{output:?}");
        let expected: String = { patterns.iter().filter(|(_, has_effect)| !has_effect) }
            .map(|(pattern, _)| {
                let pattern = pattern.replace('\u{1b}', "\\u{1b}");
                format!("fourscore: --exclude '{pattern}': leaves nothing out\n")
            })
            .collect();
        assert_eq!(
            String::from_utf8_lossy(&output.stderr),
            expected,
            "{source}"
        );
    }
}

/// The id that no user and no group has is refused as an owner, and can be mapped to another one.
#[test]
fn owners_that_no_system_has_are_refused() {
    let place = Place::new();
    let (tree, image) = (place.text("tree"), place.text("image"));
    let refused = |status, option: &str, value: &str| {
        let (found, message) = failing(&["build", &tree, "-o", &image, option, value]);
        assert_eq!(found, Some(status), "{option} {value}: {message}");
        let why = "the id that no user and no group has";
        assert!(message.contains(why), "{option} {value}: {message}");
    };
    for option in ["--uid-map", "--gid-map"] {
        for range in [
            "0:4294967295:1",
            "0:4294967290:6",
            "4294967295:4294967295:1",
        ] {
            refused(2, option, range);
        }
    }
    let manifest = place.path("manifest");
    for words in ["./etc uid=4294967295", "/set gid=4294967295"] {
        fs::write(&manifest, format!("#mtree\n{words}\n")).expect("space");
        refused(1, "--manifest", text(&manifest));
    }
    let saved = "dev=1,ino=1,mode=100644,uid=4294967295,gid=0,nlink=1,rdev=0\n";
    fs::write(&manifest, saved).expect("space");
    refused(1, "--manifest", text(&manifest));
    let kept = ["--uid-map", "0:0:4294967295", "--uid-map", "4294967295:7:1"];
    place.build("image", &kept);
}

/// An object that has that id in its source is refused by its name, unless it gets another owner.
/// Its line of the manifest of the image would be refused.
#[test]
fn objects_of_a_source_that_no_user_has_are_refused() {
    require!(Need::Program("debugfs"));
    let place = Place::new();
    let pack = |archive: &str, owner: &str| {
        let option = format!("--pax-option={owner}:=4294967295");
        let options = ["--format=pax", &option, "-cf", archive];
        let arguments = [&options[..], &["-C", "tree", "etc/passwd"]].concat();
        run("tar", &arguments, place.0.path()).expect("an archive");
    };
    pack("uid.tar", "uid");
    pack("gid.tar", "gid");
    place.build("theirs", &[]);
    let theirs = place.path("theirs");
    debugfs_write(&theirs, &["sif /etc/passwd gid 4294967295".to_owned()]).expect("it is changed");
    let image = place.text("image");
    let manifest = place.path("manifest");
    fs::write(&manifest, "#mtree\n./etc/passwd uid=7 gid=7\n").expect("space");
    for (source, kind, name) in [
        ("uid.tar", "user", "passwd"),
        ("gid.tar", "group", "passwd"),
        // Another name of the same inode.
        ("theirs", "group", "alias"),
    ] {
        let source = place.text(source);
        let build = ["build", "-q", "-F", &source, "-o", &image];
        let (status, message) = failing(&build);
        let why = format!("etc/{name}: the {kind} id is 4294967295, which no {kind} has");
        assert_eq!(status, Some(1), "{source}: {message}");
        assert!(message.contains(&why), "{source}: {message}");
        let mapped = ["u", "g"]
            .map(|kind| format!("--{kind}id-map 0:0:4294967295 --{kind}id-map 4294967295:7:1"));
        let manifest = format!("--manifest {}", text(&manifest));
        for mended in ["--owner 7:7", &manifest, &mapped.join(" ")] {
            let mended: Vec<&str> = mended.split(' ').collect();
            printed(&mut fourscore(&[&build[..], &mended].concat()));
        }
    }
}

#[test]
fn ranges_of_users_and_groups_are_mapped() {
    require!(Need::Root, Need::Program("e2fsck"));
    let place = Place::new();
    let ranges = [
        ["--uid-map", "1000:7:1"],
        ["--uid-map", "0:100000:65536"],
        ["--gid-map", "3000000:9:1"],
        ["--gid-map", "0:200000:1"],
    ];
    place.build("image", ranges.as_flattened());
    place.check("image").expect("clean");
    let walk = place.walk("image");
    for wanted in ["/etc/big f 4711 7 9 ", "/etc/passwd f 0644 100000 200000 "] {
        assert!(walk.contains(wanted), "{walk}");
    }
}

#[test]
fn the_summary_and_the_sums_describe_the_image() {
    require!(Need::Program("sha256sum"));
    let place = Place::new();
    let sums = place.text("sums");
    let json = place.build(
        "image",
        &[
            "--json", "--verify", "--sums", &sums, "--size", "+16M", "-L", "data",
        ],
    );
    let facts: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let len = fs::metadata(place.path("image")).expect("an image").len();
    assert_eq!(facts["size_bytes"], len);
    assert!(facts["free_bytes"].as_u64() >= Some(16 << 20), "{json}");
    let walk = place.walk("image");
    // There is one more name, and lost+found is an object.
    let lines = walk.lines().count() as u64;
    assert_eq!(facts["objects"].as_u64(), Some(lines), "{json}");
    assert_eq!(facts["verified"], true, "{json}");
    run("sha256sum", &["--check", "--quiet", &sums], &place.tree()).expect("the same sums");
    let listed = fs::read_to_string(place.path("sums")).expect("sums");
    assert_eq!(listed.lines().count(), 504);
}

#[test]
fn the_number_of_threads_changes_no_byte() {
    let place = Place::new();
    let images = ["1", "2", "7", "1000000"].map(|threads| {
        let (tree, image) = (place.text("tree"), place.text("image"));
        let arguments = ["build", &tree, "-o", &image, "--threads", threads];
        let mut command = fourscore(&arguments);
        printed(command.env("SOURCE_DATE_EPOCH", "1700000000"));
        fs::read(place.path("image")).expect("an image")
    });
    assert!(
        images.windows(2).all(|pair| pair[0] == pair[1]),
        "the bytes differ"
    );
}

#[test]
fn a_failed_build_keeps_the_existing_file() {
    require!(Need::Program("tar"));
    let place = Place::new();
    run("tar", &["-cf", "../in.tar", "etc"], &place.tree()).expect("an archive");
    let archive = fs::read(place.path("in.tar")).expect("an archive");
    fs::write(place.path("cut.tar"), &archive[..archive.len() / 2]).expect("space");
    fs::write(place.path("image"), "before").expect("space");
    let names = || fs::read_dir(place.0.path()).expect("a folder").count();
    let before = names();
    let (tree, cut, image) = (
        place.text("tree"),
        place.text("cut.tar"),
        place.text("image"),
    );
    for (arguments, expected) in [
        (
            &[cut.as_str()][..],
            "cut.tar: etc/big: the archive is truncated",
        ),
        (&["/nowhere"], "/nowhere: No such file"),
        (&["oci:/nowhere"], "oci:/nowhere: oci-layout: No such file"),
        (
            &[&tree, "--size", "1M"],
            "the size of 1048576 bytes is too small",
        ),
        (
            &[&tree, "--uid-map", "5000:0:1"],
            "is in no range of the map",
        ),
    ] {
        let (status, message) = failing(&[&["build", "-F", "-o", &image], arguments].concat());
        assert_eq!(status, Some(1), "{message}");
        assert!(
            message.contains(expected),
            "expected {expected}\nfound    {message}"
        );
    }
    for wrong in [
        &["--size", "big"][..],
        &["--owner", ":"],
        &["--exclude", "[x"],
    ] {
        let (status, message) = failing(&[&["build", &tree, "-o", &image], wrong].concat());
        assert_eq!(status, Some(2), "{message}");
    }
    assert_eq!(fs::read(place.path("image")).expect("it exists"), b"before");
    assert_eq!(names(), before, "nothing is left behind");
}

/// Runs the command under a name of mke2fs.
fn mke2fs(name: &str, line: &str) -> Result<std::process::Output> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fourscore"));
    command
        .arg0(format!("/usr/sbin/{name}"))
        .args(line.split(' '));
    command.output().context("it runs")
}

/// Command lines of image builders, with placeholders DIR, TAR and IMAGE.
const SCRIPTS: [(&str, &str, &str); 12] = [
    (
        "Yocto, image_types.bbclass",
        "mkfs.ext4",
        "-F -i 4096 IMAGE -d DIR",
    ),
    (
        "Yocto, image_types.bbclass",
        "mkfs.ext3",
        "-F -i 4096 IMAGE -d DIR",
    ),
    (
        "Buildroot, fs/ext2/ext2.mk",
        "mkfs.ext4",
        "-d DIR -r 1 -N 0 -m 5 -L rootfs -O ^64bit IMAGE 60M",
    ),
    (
        "Buildroot, fs/ext2/ext2.mk",
        "mkfs.ext2",
        "-d DIR -r 1 -b 1024 -N 0 -m 5 -L rootfs -I 256 IMAGE 60M",
    ),
    (
        "genimage, image-ext2.c",
        "mke2fs",
        "-t ext4 -T default -L data -E root_owner=0:0,lazy_itable_init=0,lazy_journal_init=0 \
         -O ^64bit -d DIR IMAGE 61440k",
    ),
    (
        "systemd-repart (mkosi), mkfs-util.c",
        "mkfs.ext4",
        "-L root -U 11111111-2222-3333-4444-555555555555 -I 256 -m 0 \
         -E nodiscard,lazy_itable_init=1 -b 4096 -T default -q -d DIR IMAGE",
    ),
    (
        "a reproducible image",
        "mke2fs",
        "-F -q -t ext4 -b 4096 -m 0 -L X -U c2b00000-0000-4000-8000-000000000001 \
         -O ^has_journal,^dir_index,^orphan_file \
         -E root_owner=0:0,hash_seed=c2b00000-0000-4000-8000-000000000001 -d DIR IMAGE",
    ),
    (
        "systemd-repart before v254, mkfs-util.c",
        "mkfs.ext4",
        "-q -L root -U 11111111-2222-3333-4444-555555555555 -I 256 -O has_journal -m 0 \
         -E discard,lazy_itable_init=1 IMAGE -d DIR",
    ),
    (
        "systemd-repart before v254, mkfs-util.c",
        "mkfs.ext2",
        "-q -L root -U 11111111-2222-3333-4444-555555555555 -I 256 -m 0 \
         -E nodiscard,lazy_itable_init=1 IMAGE -d DIR",
    ),
    (
        "Yocto, wic, partition.py",
        "mkfs.ext4",
        "-F -i 8192 IMAGE -L root -U 11111111-2222-3333-4444-555555555555 -d DIR",
    ),
    ("a tar", "mke2fs", "-q -t ext4 -d TAR IMAGE 60M"),
    ("ext2 without a type", "mke2fs", "-q -d DIR IMAGE 60M"),
];

#[test]
fn the_command_lines_of_image_builders_work_unchanged() {
    require!(Need::Program("e2fsck"), Need::Program("tar"));
    let place = Place::new();
    run("tar", &["-cf", "../in.tar", "."], &place.tree()).expect("an archive");
    let tree_walk = walk_of_host(&place.tree());
    // By default archives have no extended attributes; the root is that of the file system.
    let names = |walk: &str| -> Vec<String> {
        let fields = |line: &str| line.split(' ').take(6).collect::<Vec<_>>().join(" ");
        walk.lines().skip(1).map(fields).collect()
    };
    for (whose, name, line) in SCRIPTS {
        let image = place.path("image");
        if image.exists() {
            fs::remove_file(&image).expect("it exists");
        }
        if !line.contains('0') || line.ends_with("DIR") || line.ends_with("IMAGE") {
            // These fill an existing file.
            fs::File::create(&image)
                .and_then(|file| file.set_len(60 << 20))
                .expect("space");
        }
        let line = line
            .replace("IMAGE", &place.text("image"))
            .replace("DIR", &place.text("tree"))
            .replace("TAR", &place.text("in.tar"));
        let output = mke2fs(name, &line).expect(whose);
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{whose}: {message}");
        place.check("image").expect(whose);
        assert_eq!(
            fs::metadata(&image).expect(whose).len(),
            60 << 20,
            "{whose}"
        );
        assert_eq!(names(&place.walk("image")), names(&tree_walk), "{whose}");
        let facts = printed(&mut fourscore(&["info", &place.text("image")]));
        let has_extents = facts.split_whitespace().any(|word| word == "extent");
        let is_ext4 = name == "mkfs.ext4" || line.contains("-t ext4");
        assert_eq!(has_extents, is_ext4, "{whose}: {facts}");
        // Yocto and genimage run this next; a status of up to 2 is a success.
        let mut e2fsck = tools::command("e2fsck").expect("it exists");
        let checked = e2fsck.arg("-pfD").arg(&image).output().expect("it runs");
        assert!(checked.status.code() <= Some(2), "{whose}: {checked:?}");
        place.check("image").expect(whose);
        assert_eq!(names(&place.walk("image")), names(&tree_walk), "{whose}");
    }
}

/// A block device is written in place, and nothing of its old content shows.
#[test]
fn a_block_device_is_filled_in_place() {
    require!(Need::KernelMount, Need::Program("e2fsck"));
    let place = Place::new();
    let tree = place.text("tree");
    for (line, is_mke2fs) in [
        ("-q -F -t ext4 -d DIR DEVICE", true),
        ("-q -F -t ext2 -b 1024 -d DIR DEVICE", true),
        ("build DIR -o DEVICE --verify", false),
        ("build DIR -o DEVICE --size 40M -t ext3 -E discard", false),
        (
            "build DIR -o DEVICE --size +5M -O inline_data,quota,bigalloc",
            false,
        ),
        ("build DIR -o DEVICE --shrink", false),
    ] {
        fs::write(place.path("disk"), vec![0xa5; 64 << 20]).expect("space");
        let disk = LoopDevice::new(&place.path("disk")).expect("a device");
        let line = line.replace("DIR", &tree);
        let line = line.replace("DEVICE", text(disk.path()));
        let mut command = Command::new(env!("CARGO_BIN_EXE_fourscore"));
        if is_mke2fs {
            command.arg0("mke2fs");
        }
        printed(command.args(line.split(' ')));
        run("e2fsck", &["-fn", text(disk.path())], place.0.path()).expect(&line);
        let walk = printed(&mut fourscore(&["walk", "--hash", text(disk.path())]));
        let ours = without_lost_and_found(&walk);
        let source = walk_of_host(&place.tree());
        // mke2fs creates a new root.
        let from = usize::from(is_mke2fs);
        assert_eq!(
            ours[from..],
            source.lines().collect::<Vec<_>>()[from..],
            "{line}"
        );
    }
    // With O_EXCL, as the kernel opens the device of a mount.
    let disk = LoopDevice::new(&place.path("disk")).expect("a device");
    let flags = OFlags::EXCL | OFlags::RDONLY;
    let held = rustix::fs::open(disk.path(), flags, Mode::empty()).expect("not in use");
    let (status, message) = failing(&["build", &tree, "-o", text(disk.path())]);
    drop(held);
    assert_eq!(status, Some(1), "{message}");
    assert!(message.contains(text(disk.path())), "{message}");
    run("e2fsck", &["-fn", text(disk.path())], place.0.path()).expect("it was left alone");
}

/// An output that is neither a file nor a block device is not replaced, nor is a link to the image.
#[test]
fn only_a_file_is_replaced() {
    let place = Place::new();
    let tree = place.text("tree");
    run("mkfifo", &["output"], place.0.path()).expect("space");
    for (target, expected) in [
        (place.text("output"), "is neither a file nor a block device"),
        (place.text("tree"), "is neither a file nor a block device"),
        (
            "/dev/null".to_owned(),
            "is neither a file nor a block device",
        ),
    ] {
        let before = fs::metadata(&target).expect("it exists").file_type();
        let (status, message) = failing(&["build", &tree, "-o", &target]);
        assert_eq!(status, Some(1), "{message}");
        assert!(message.contains(expected), "{message}");
        assert_eq!(fs::metadata(&target).expect("still").file_type(), before);
    }
    fs::write(place.path("secret"), "").expect("space");
    fs::set_permissions(place.path("secret"), fs::Permissions::from_mode(0o600))
        .expect("permission");
    std::os::unix::fs::symlink("secret", place.path("image")).expect("space");
    place.build("image", &[]);
    assert!(place.path("image").is_symlink());
    let mode = fs::metadata(place.path("secret"))
        .expect("it exists")
        .permissions()
        .mode();
    assert_eq!(mode & 0o7777, 0o600);
    assert_eq!(place.walk("secret"), walk_of_host(&place.tree()));
}

/// Sizes on the command line.
#[test]
fn images_have_the_size_of_the_option() {
    require!(Need::Program("e2fsck"));
    let place = Place::new();
    let made = |more: &[&str]| -> (u64, u64) {
        let json = place.build("image", &[&["--json"], more].concat());
        place.check("image").expect("clean");
        let facts: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        let number = |name: &str| facts[name].as_u64().expect(name);
        (number("size_bytes"), number("free_bytes"))
    };
    let (auto, free) = made(&[]);
    assert!(free * 100 < auto, "{free} of {auto} bytes are free");
    assert_eq!(made(&["--size", "auto"]), (auto, free));
    assert_eq!(made(&["--size", "64M"]).0, 64 << 20);
    let (_, free) = made(&["--size", "+24M"]);
    assert!((24 << 20..25 << 20).contains(&free), "{free}");
    let (_, free) = made(&["--size", "+20%"]);
    assert!((auto / 5..auto / 4).contains(&free), "{free}");
    let (least, free) = made(&["--shrink"]);
    assert!(least < auto && free * 100 < least, "{least} {free}");
}

#[test]
fn options_of_root_owner_and_attributes_take_effect() {
    require!(Need::Root, Need::Program("e2fsck"));
    let place = Place::new();
    place.build("image", &["-E", "root_owner=7:70000,no_copy_xattrs"]);
    place.check("image").expect("clean");
    let walk = place.walk("image");
    assert!(walk.starts_with("/ d 0755 7 70000 "), "{walk}");
    assert!(walk.contains("/etc/big f 4711 1000 3000000 "), "{walk}");
    let attributes = |line: &str| line.split(' ').nth(10).map(str::to_owned);
    assert!(
        walk.lines()
            .all(|line| attributes(line).as_deref() == Some("-")),
        "{walk}"
    );
}

/// Only the extended attributes of the root are those of the source.
#[test]
fn root_and_lost_found_equal_those_of_mke2fs() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("debugfs"),
        Need::Program("setfattr")
    );
    let place = Place::new();
    let tree = place.tree();
    run("setfattr", &["-n", "user.of", "-v", "root", "."], &tree).expect("an attribute");
    fs::set_permissions(&tree, fs::Permissions::from_mode(0o2711)).expect("permission");
    run("touch", &["-d", "2001-02-03", "."], &tree).expect("a time");
    for line in [
        "-q -F -t ext4",
        "-q -F -t ext4 -E root_owner=7:70000",
        "-q -F -t ext4 -E no_copy_xattrs",
    ] {
        let line = format!("{line} -d {} {} 60M", text(&tree), place.text("image"));
        let facts = |command: &mut Command| {
            command.env("E2FSPROGS_FAKE_TIME", "1700000000");
            let output = command.args(line.split(' ')).output().expect("it runs");
            let message = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{line}: {message}");
            [
                "stat /",
                "ea_list /",
                "stat /lost+found",
                "ea_list /lost+found",
            ]
            .map(|asked| {
                let image = place.text("image");
                let printed =
                    tools::run("debugfs", &["-R".as_ref(), asked.as_ref(), image.as_ref()]);
                let printed = printed.expect("a file system");
                let differs = ["checksum", "EXTENTS", "(0"];
                let lines = printed.lines();
                let same = lines.filter(|line| !differs.iter().any(|word| line.contains(word)));
                same.collect::<Vec<_>>().join("\n")
            })
        };
        let theirs = facts(&mut tools::command("mke2fs").expect("it exists"));
        let ours = facts(Command::new(env!("CARGO_BIN_EXE_fourscore")).arg0("mke2fs"));
        let without = line.contains("no_copy_xattrs");
        assert_eq!(theirs[1].contains("user.of"), !without, "{theirs:?}");
        assert_eq!(ours, theirs, "{line}");
        fs::remove_file(place.path("image")).expect("it was made");
    }
}

#[test]
fn unsupported_options_of_mke2fs_are_refused_by_name() {
    let place = Place::new();
    for option in ["-c", "-S", "-l bad", "-z undo", "-y"] {
        let line = format!(
            "{option} -d {} {} 60M",
            place.text("tree"),
            place.text("image")
        );
        let output = mke2fs("mke2fs", &line).expect("it runs");
        let message = String::from_utf8_lossy(&output.stderr);
        let name = option.split(' ').next().expect("a name");
        assert!(
            !output.status.success() && message.contains(name),
            "{option}: {message}"
        );
        assert!(!place.path("image").exists(), "{option}");
    }
}

/// The same files make an identical image from every kind of source.
#[test]
fn a_canonical_image_is_independent_of_the_kind_of_source() {
    require!(
        Need::Program("tar"),
        Need::Program("gzip"),
        Need::Program("e2fsck"),
        Need::Root
    );
    let place = Place::new();
    // Half of it is data, and a part of that is zeroes.
    let mut content = vec![0; 3 << 20];
    content[1 << 20..2 << 20].fill(7);
    content[(1 << 20) + 5000..(1 << 20) + 20_000].fill(0);
    fs::write(place.path("tree/half"), &content).expect("space");
    run(
        "touch",
        &["-d", "@1600000000.25", "etc/passwd"],
        &place.tree(),
    )
    .expect("permission");
    let all = ["--xattrs", "--xattrs-include=*"];
    let pack = |name: &str, more: &[&str]| {
        let name = format!("../{name}");
        let arguments = [&all[..], more, &["-cf", &name, "."]].concat();
        run("tar", &arguments, &place.tree()).expect("an archive");
    };
    pack("dense.tar", &["--format=posix"]);
    pack("sparse.tar", &["--format=posix", "--sparse"]);
    // The default format has times in whole seconds.
    pack(
        "usual.tar",
        &["--format=posix", "--pax-option=delete=mtime"],
    );
    run("gzip", &["-k", "dense.tar", "sparse.tar"], place.0.path()).expect("archives");
    let build = |source: &str, image: &str, input: Option<&str>| {
        let (source, image) = match input {
            None => (place.text(source), place.text(image)),
            Some(_) => (source.to_owned(), place.text(image)),
        };
        let mut command = fourscore(&["build", &source, "-o", &image, "--canonical"]);
        command.env("SOURCE_DATE_EPOCH", "1700000000");
        if let Some(input) = input {
            command.stdin(fs::File::open(place.path(input)).expect("an archive"));
        }
        printed(&mut command);
        fs::read(image).expect("an image")
    };
    let first = build("tree", "image", None);
    place.check("image").expect("clean");
    for source in [
        "dense.tar",
        "sparse.tar",
        "usual.tar",
        "dense.tar.gz",
        "sparse.tar.gz",
        "image",
    ] {
        assert!(build(source, "other", None) == first, "{source}");
    }
    for input in ["dense.tar", "sparse.tar.gz"] {
        assert!(build("-", "other", Some(input)) == first, "{input}");
    }
    let mut cat = Command::new("cat");
    cat.arg(place.path("dense.tar")).stdout(Stdio::piped());
    let mut cat = cat.spawn().expect("it exists");
    let mut command = fourscore(&["build", "-", "-o", &place.text("other"), "--canonical"]);
    command.env("SOURCE_DATE_EPOCH", "1700000000");
    command.stdin(cat.stdout.take().expect("a pipe"));
    printed(&mut command);
    assert!(cat.wait().expect("it ran").success());
    assert!(
        fs::read(place.path("other")).expect("an image") == first,
        "a pipe"
    );
    let help = printed(&mut fourscore(&["build", "--help"]));
    assert!(help.contains("All data is read once more"), "{help}");
}
