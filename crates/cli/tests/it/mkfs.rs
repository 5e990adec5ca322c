//! `fourscore mkfs`: the image equals that of mke2fs with the same command line, a refused device
//! is not changed, and errors name the option.
//!
//! The image may differ from that of mke2fs in the superblock's count of written bytes and in its
//! checksum.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use fourscore_block::{BlockDevice, DeviceOptions, open_path};
use fourscore_testkit::tools::{self, Need};
use fourscore_testkit::{Access, KernelMount, LoopDevice, oracle, require, scratch};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::common::{fourscore, text};

const UUID: &str = "f0055c09-e4a0-4b1d-9c00-000000000080";
const HASH_SEED: &str = "hash_seed=0a55c09e-e4a0-4b1d-9c00-000000000008";
const TIME: &str = "1700000000";
const MIB: u64 = 1 << 20;
const MIB_BYTES: usize = 1 << 20;

/// A folder with images in it.
struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = scratch::folder().expect("a folder");
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A sparse file.
    fn image(&self, name: &str, len_bytes: u64) -> PathBuf {
        let path = self.path(name);
        let file = File::create(&path).expect("space");
        file.set_len(len_bytes).expect("sparse files");
        path
    }
}

/// `mkfs` with arguments separated by blanks, on `image`, at a fixed time.
fn mkfs(arguments: &str, image: &str, size: &str) -> Command {
    let words = ["mkfs"].into_iter().chain(arguments.split_whitespace());
    let mut command = fourscore(&words.collect::<Vec<_>>());
    command.env("SOURCE_DATE_EPOCH", TIME).arg(image);
    if !size.is_empty() {
        command.arg(size);
    }
    command
}

fn mke2fs(arguments: &str, image: &Path, size: &str) -> Command {
    let mut command = tools::command("mke2fs").expect("it was required");
    command.env("E2FSPROGS_FAKE_TIME", TIME);
    command.args(arguments.split_whitespace()).arg(image);
    if !size.is_empty() {
        command.arg(size);
    }
    command
}

/// The output of a run that must succeed.
#[track_caller]
fn done(command: &mut Command) -> String {
    let output = command.output().expect("the program exists");
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {message}");
    String::from_utf8(output.stdout).expect("text")
}

/// Status and message of a run that must fail.
#[track_caller]
fn refused(command: &mut Command) -> (Option<i32>, String) {
    let output = command.output().expect("the program exists");
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{command:?} is accepted");
    (output.status.code(), message)
}

/// The bytes of an image without those that may differ from mke2fs.
fn comparable(image: &Path) -> Vec<u8> {
    let mut bytes = fs::read(image).expect("an image");
    let uuid: Vec<u8> = (0..16)
        .map(|index| {
            let digits: String = UUID.chars().filter(|&c| c != '-').collect();
            u8::from_str_radix(&digits[2 * index..2 * index + 2], 16).expect("hexadecimal")
        })
        .collect();
    for superblock in bytes.chunks_exact_mut(1024) {
        if superblock[0x38..0x3a] == [0x53, 0xef] && superblock[0x68..0x78] == uuid {
            superblock[0x178..0x180].fill(0);
            superblock[0x3fc..].fill(0);
        }
    }
    bytes
}

#[track_caller]
fn assert_same_images(ours: &Path, theirs: &Path, what: &str) {
    let (ours, theirs) = (comparable(ours), comparable(theirs));
    assert_eq!(ours.len(), theirs.len(), "{what}");
    let differing = ours.iter().zip(&theirs).position(|(a, b)| a != b);
    assert_eq!(differing, None, "{what}: the first byte that differs");
}

/// Size, and arguments for both programs.
const COMMAND_LINES: &[(&str, &str)] = &[
    ("16M", "-t ext4"),
    ("16384", "-t ext4"),
    ("16m", "-t ext3 -b 1024"),
    ("4096", "-t ext4 -b 4096"),
    ("8192", "-t ext4 -b 2k"),
    ("32768s", "-t ext2"),
    ("64M", "-t ext4 -b -2048"),
    ("64M", "-t ext4 -O bigalloc -C 64k"),
    ("64M", "-t ext4 -g 8192 -G 4 -b 4096"),
    ("64M", "-t ext4 -i 64k -I 512"),
    ("64M", "-t ext4 -N 5000 -m 1.5"),
    ("64M", "-t ext4 -J size=8,location=20M -b 4096"),
    ("64M", "-t ext2 -j"),
    ("64M", "-t ext4 -L label -M /mnt/somewhere -e panic"),
    ("64M", "-t ext4 -O ^has_journal -O ^64bit,quota"),
    ("64M", "-t ext4 -O none,extent -o hurd -t ext4 -I 128"),
    ("64M", "-t ext2 -r 0"),
    ("64M", "-t ext4 -T news"),
    ("64M", "-t ext4 -T largefile,news"),
    ("64M", "-t ext4 -T small -D"),
];

#[test]
fn the_same_command_line_makes_the_same_image_as_mke2fs() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let place = Place::new();
    for (size, arguments) in COMMAND_LINES {
        let arguments = arguments.replacen("-t ext4 -O none", "-O none", 1);
        let arguments = format!("{arguments} -q -F -U {UUID} -E {HASH_SEED}");
        // A file that mkfs creates is known to have zeroes, which its descriptors record.
        let [ours, theirs] = ["ours", "theirs"].map(|name| place.image(name, 64 * MIB));
        done(&mut mke2fs(&arguments, &theirs, size));
        let printed = done(&mut mkfs(&arguments, text(&ours), size));
        assert_eq!(printed, "", "-q prints nothing");
        assert_same_images(&ours, &theirs, &arguments);
        oracle::assert_clean(&ours);
        fs::remove_file(ours).expect("it was made");
        fs::remove_file(theirs).expect("it was made");
    }
}

#[test]
fn a_partition_is_filled_and_nothing_around_it_is_changed() {
    require!(Need::Program("mke2fs"));
    let place = Place::new();
    let arguments = format!("-t ext4 -q -F -U {UUID} -E {HASH_SEED}");
    let theirs = place.image("theirs", 32 * MIB);
    done(&mut mke2fs(&arguments, &theirs, "32M"));
    let at_offset = |image: &Path| format!("{}@1M", text(image));
    for with_size in [true, false] {
        let disk = place.path("disk");
        fs::write(&disk, vec![0xa5; 33 * MIB_BYTES]).expect("space");
        if with_size {
            File::options()
                .append(true)
                .open(&disk)
                .and_then(|mut file| std::io::Write::write_all(&mut file, &[0xa5; 4096]))
                .expect("space");
        }
        let size = if with_size { "32M" } else { "" };
        done(&mut mkfs(&arguments, &at_offset(&disk), size));
        let bytes = fs::read(&disk).expect("the disk");
        let (before, rest) = bytes.split_at(MIB_BYTES);
        let (inside, behind) = rest.split_at(32 * MIB_BYTES);
        assert!(before.iter().chain(behind).all(|&byte| byte == 0xa5));
        fs::write(place.path("ours"), inside).expect("space");
        assert_same_images(&place.path("ours"), &theirs, "with @1M");
    }
    let disk = place.image("other", 33 * MIB);
    let arguments = format!("{arguments},offset={MIB}");
    done(&mut mkfs(&arguments, text(&disk), "32M"));
    let bytes = fs::read(&disk).expect("the disk");
    fs::write(place.path("ours"), &bytes[MIB_BYTES..]).expect("space");
    assert_same_images(&place.path("ours"), &theirs, "with -E offset");
}

#[test]
fn a_dry_run_prints_what_mke2fs_prints_and_writes_nothing() {
    require!(Need::Program("mke2fs"));
    let place = Place::new();
    for (size, arguments) in [
        ("16M", "-t ext4"),
        ("1G", "-t ext4"),
        ("1G", "-t ext2 -v"),
        ("15T", "-t ext4"),
        (
            "1G",
            "-t ext4 -O bigalloc -v -L name -E stride=4,stripe_width=8,root_owner=7:8",
        ),
    ] {
        let image = place.path("missing");
        let arguments = format!("{arguments} -n -U {UUID}");
        // mke2fs needs a file, which it does not read.
        let theirs = done(&mut mke2fs(&arguments, &place.image("empty", 0), size));
        let ours = done(&mut mkfs(&arguments, text(&image), size));
        assert_eq!(ours.contains(UUID), ours.contains("backups"), "{ours}");
        // With -v mke2fs also prints the sections of its configuration.
        let theirs: String = theirs
            .lines()
            .filter(|line| !line.starts_with("fs_types for"))
            .map(|line| format!("{line}\n"))
            .collect();
        assert_eq!(ours, theirs, "{arguments}");
        assert!(!image.exists(), "{arguments}");
    }
    // A dry run on an image with a file system shows its backups.
    let image = place.image("image", 64 * MIB);
    done(&mut mkfs("-q", text(&image), ""));
    let before = fs::read(&image).expect("the image");
    let printed = done(&mut mkfs("-n", text(&image), ""));
    assert!(
        printed.contains("Superblock backups stored on blocks:"),
        "{printed}"
    );
    assert!(fs::read(&image).expect("the image") == before);
}

/// Arguments, size, status, and the message after the name of the program.
const REFUSALS: &[(&str, &str, i32, &str)] = &[
    ("-b 3000", "", 2, "-b: 3000 is not a block size"),
    ("-b 1G", "", 2, "-b: "),
    ("-b 65537", "", 2, "-b: "),
    ("-b x", "", 2, "-b: x is not a size"),
    ("-C 64k", "", 2, "-C: needs the feature bigalloc"),
    (
        "-O bigalloc -C 1k -b 4096",
        "",
        2,
        "-C: 1024 is no power of 2",
    ),
    ("-O bigalloc -C 8G", "", 2, "-C: is more than 4 GiB"),
    ("-g 1001", "", 2, "-g: 1001 blocks"),
    ("-g 1000000", "", 2, "-g: 1000000 is not from 256"),
    ("-G 3", "", 2, "-G: 3 groups"),
    ("-O ^flex_bg -G 4", "", 2, "-G: needs the feature flex_bg"),
    ("-i 7", "", 2, "-i: 7 is not from 1024"),
    ("-I 100", "", 2, "-I: 100 is no power of 2"),
    ("-b 1024 -J size=4", "", 2, "-J size: 4096 blocks are over"),
    (
        "-J speed=9",
        "",
        2,
        "-J speed: there is no such journal option",
    ),
    (
        "-J device=/nowhere/at/all",
        "",
        1,
        "/nowhere/at/all: No such file",
    ),
    (
        "-J device=/dev/null",
        "",
        1,
        "/dev/null: is not a block device",
    ),
    (
        "-J device=/dev/null,size=4",
        "",
        2,
        "-J: the size and place",
    ),
    ("-L a_label_of_17_byte", "", 2, "-L: "),
    ("-m 51", "", 2, "-m: 51 is not from 0 to 50"),
    ("-m nan", "", 2, "-m: NaN is not from 0 to 50"),
    ("-N 100000000", "", 2, "-I, -i, -N: "),
    ("-O nonsense", "", 2, "-O: nonsense: there is no feature"),
    (
        "-O needs_recovery",
        "",
        2,
        "-O: needs_recovery: cannot be set",
    ),
    ("-O 64bit,^extent", "", 2, "-O: 64bit needs extent"),
    ("-E nonsense", "", 2, "-E nonsense: there is no such"),
    ("-E stride", "", 2, "-E stride: needs a value"),
    ("-E resize=1M", "", 2, "-E resize: the limit is not above"),
    ("-T nonsense", "", 2, "-T: nonsense is not in the profile"),
    ("-t ext5", "", 2, "-t: ext5 is not in the profile"),
    ("-U 123", "", 2, "-U: 123 is not a UUID"),
    ("-e ignore", "", 2, "-e: ignore is not"),
    ("-o plan9", "", 2, "-o: plan9 is not"),
    ("-r 7", "", 2, "-r: there is no revision 7"),
    ("", "0", 1, "mkfs: size: "),
    ("", "64X", 2, "SIZE: 64X is not a size"),
    ("", "-5", 2, ""),
    ("-t ext2 -b 4096", "17T", 2, "-O: "),
    ("-t ext4", "64k", 1, "mkfs: size: "),
    ("-c", "", 2, "-c: mkfs does not search for bad blocks"),
    ("-cc", "", 2, "-c: "),
    (
        "-l list",
        "",
        2,
        "-l: mkfs does not take a list of bad blocks",
    ),
    ("-S", "", 2, "-S: mkfs does not rewrite only"),
    ("-z undo", "", 2, "-z: mkfs does not write an undo file"),
    ("-R stride=4", "", 2, "-R: "),
    ("-K", "", 2, "-K: "),
    ("-s 1", "", 2, "-s: "),
    ("-g many", "", 2, ""),
    ("-X", "", 2, ""),
    (
        "-O journal_dev -J size=4",
        "",
        2,
        "-J: a journal device cannot have a journal",
    ),
    ("-O journal_dev -b 4096", "1M", 1, "mkfs: size: 256 blocks"),
];

#[test]
fn a_refused_device_is_not_changed() {
    let place = Place::new();
    let image = place.path("image");
    let content: Vec<u8> = (0..=250).cycle().take(4 * MIB_BYTES).collect();
    fs::write(&image, &content).expect("space");
    let missing = place.path("missing");
    for (arguments, size, status, expected) in REFUSALS {
        let (found, message) = refused(&mut mkfs(arguments, text(&image), size));
        assert_eq!(found, Some(*status), "{arguments} {size}: {message}");
        let expected = format!("fourscore: {expected}");
        // The parser of the command line has its own messages.
        if expected != "fourscore: " {
            assert!(
                message.starts_with(&expected),
                "{arguments} {size}: {message}"
            );
            assert_eq!(message.lines().count(), 1, "{message}");
        }
        assert!(
            fs::read(&image).expect("it exists") == content,
            "{arguments} {size}"
        );
        let size = if size.is_empty() { "4M" } else { size };
        let (found, _) = refused(&mut mkfs(arguments, text(&missing), size));
        assert_eq!(found, Some(*status), "{arguments} {size}");
        assert!(!missing.exists(), "{arguments} {size}");
    }
    for (image, expected) in [
        (text(&missing), "does not exist (give SIZE"),
        (text(place.folder.path()), "directory"),
        ("/dev/null", "device"),
    ] {
        let (status, message) = refused(&mut mkfs("", image, ""));
        assert_eq!(status, Some(1), "{message}");
        assert!(message.contains(expected), "{message}");
    }
    let (status, message) = refused(&mut mkfs("", &format!("{}@8M", text(&image)), ""));
    assert_eq!(status, Some(1));
    assert!(message.contains("before the offset"), "{message}");
    let (status, _) = refused(mkfs("", text(&missing), "4M").env("SOURCE_DATE_EPOCH", "now"));
    assert_eq!(status, Some(2));
}

#[test]
fn known_content_is_not_overwritten_without_force() {
    let place = Place::new();
    let image = place.path("image");
    for (at, signature, name) in [
        (1080, &b"\x53\xef"[..], "ext2, ext3 or ext4"),
        (0, b"XFSB", "xfs"),
        (65_600, b"_BHRfS_M", "btrfs"),
        (510, b"\x55\xaa", "a partition table"),
        (4086, b"SWAPSPACE2", "swap space"),
        (0, b"LUKS\xba\xbe", "an encrypted volume"),
    ] {
        let mut content = vec![0; 8 * MIB_BYTES];
        content[at..at + signature.len()].copy_from_slice(signature);
        fs::write(&image, &content).expect("space");
        let (status, message) = refused(&mut mkfs("-t ext4", text(&image), "16M"));
        assert_eq!(status, Some(1), "{message}");
        assert!(
            message.contains(name) && message.contains("use -F to overwrite it"),
            "{message}"
        );
        assert!(fs::read(&image).expect("it exists") == content, "{name}");
        done(&mut mkfs("-q -F", text(&image), "16M"));
        assert_eq!(fs::metadata(&image).expect("it exists").len(), 16 * MIB);
        // Now it has a file system in any case.
        refused(&mut mkfs("-q", text(&image), ""));
    }
}

#[test]
fn an_image_that_is_being_written_is_refused() {
    let place = Place::new();
    let image = place.image("image", 8 * MIB);
    let writer = open_path(&image, DeviceOptions::read_write()).expect("the image is not in use");
    let (status, message) = refused(&mut mkfs("-q", text(&image), "16M"));
    assert_eq!(status, Some(1), "{message}");
    assert_eq!(writer.len_bytes(), 8 * MIB);
    assert_eq!(fs::metadata(&image).expect("it exists").len(), 8 * MIB);
    drop(writer);
    done(&mut mkfs("-q", text(&image), "16M"));
}

#[test]
fn mounted_images_and_devices_are_refused() {
    require!(Need::KernelMount, Need::Program("e2fsck"));
    let place = Place::new();
    let image = place.path("image");
    done(&mut mkfs("-q", text(&image), "16M"));
    let mount = KernelMount::new(&image, Access::ReadWrite, "").expect("a mount");
    fs::write(mount.path().join("file"), "content").expect("space");
    let device = format!("/dev/{}", mount.device_name().expect("it is mounted"));
    for (target, expected) in [
        (text(&image), "is in use by the loop device"),
        (device.as_str(), "is mounted"),
    ] {
        for arguments in ["-q", "-q -b 1024 -t ext2"] {
            let (status, message) = refused(&mut mkfs(arguments, target, ""));
            assert_eq!(status, Some(1), "{message}");
            assert!(message.contains(expected), "{message}");
        }
    }
    assert_eq!(
        fs::read(mount.path().join("file")).expect("it exists"),
        b"content"
    );
    mount.unmount().expect("the mount is not busy");
    oracle::assert_clean(&image);
}

#[test]
fn fixed_uuid_seed_and_time_make_identical_images() {
    let place = Place::new();
    let digest = |time: &str, name: &str| {
        let image = place.path(name);
        let arguments = format!("-q -U {UUID} -E {HASH_SEED} -O quota,orphan_file");
        done(mkfs(&arguments, text(&image), "64M").env("SOURCE_DATE_EPOCH", time));
        Sha256::digest(fs::read(&image).expect("it was made"))
    };
    assert_eq!(digest(TIME, "first"), digest(TIME, "second"));
    assert_ne!(digest(TIME, "third"), digest("1700000001", "fourth"));
    // Without them no two images are identical.
    for name in ["fifth", "sixth"] {
        done(&mut mkfs("-q", text(&place.path(name)), "8M"));
    }
    let different = [place.path("fifth"), place.path("sixth")].map(|path| fs::read(path).ok());
    assert!(different[0] != different[1]);
}

#[test]
fn external_journals_equal_those_of_mke2fs() {
    require!(Need::Program("mke2fs"));
    let place = Place::new();
    for (size, arguments) in [
        ("8M", "-t ext2 -b 4096"),
        ("8M", "-t ext3 -b 1024 -L log"),
        ("4M", "-t ext4"),
        ("70M", "-t ext4 -b 65536"),
        ("8M", "-t ext4 -b 2048 -I 128"),
    ] {
        let arguments = format!("{arguments} -O journal_dev -q -U {UUID} -E {HASH_SEED}");
        let (ours, theirs) = (place.path("ours"), place.path("theirs"));
        done(&mut mke2fs(&format!("{arguments} -F"), &theirs, size));
        done(&mut mkfs(&arguments, text(&ours), size));
        assert_same_images(&ours, &theirs, &arguments);
        fs::remove_file(ours).expect("it was made");
        fs::remove_file(theirs).expect("it was made");
    }
}

#[test]
fn a_file_system_uses_an_external_journal() {
    require!(
        Need::KernelMount,
        Need::Program("mke2fs"),
        Need::Program("e2fsck")
    );
    let place = Place::new();
    let journal = LoopDevice::new(&place.image("journal", 8 * MIB)).expect("a device");
    let make_journal = || {
        let arguments = "-q -F -O journal_dev -b 4096";
        done(&mut mkfs(arguments, text(journal.path()), ""));
    };
    make_journal();
    let image = place.path("image");
    let arguments = format!("-q -t ext4 -U {UUID} -J device={}", text(journal.path()));
    done(&mut mkfs(&arguments, text(&image), "64M"));

    let theirs = place.path("theirs");
    make_journal();
    let dump = |image: &Path| {
        let printed = tools::run("dumpe2fs", &["-h".as_ref(), image.as_os_str()]);
        let printed = printed.expect("a file system");
        let differs = [
            "Lifetime",
            "Checksum:",
            "Directory Hash Seed",
            "Journal UUID",
        ];
        let lines = printed.lines();
        let same = lines.filter(|line| !differs.iter().any(|other| line.starts_with(other)));
        same.collect::<Vec<_>>().join("\n")
    };
    done(&mut mke2fs(&format!("{arguments} -F"), &theirs, "64M"));
    assert_eq!(dump(&image), dump(&theirs));

    // The journal now belongs to the file system that mke2fs made.
    let others = format!("-q -t ext4 -J device={}", text(journal.path()));
    let (status, message) = refused(&mut mkfs(&others, text(&place.path("other")), "64M"));
    assert_eq!(status, Some(1), "{message}");
    assert!(
        message.contains("is in use by the file system"),
        "{message}"
    );
    fs::remove_file(&image).expect("it was made");
    done(&mut mkfs(&arguments, text(&image), "64M"));
    let mount = KernelMount::new(&image, Access::ReadWrite, "").expect("a mount");
    fs::write(mount.path().join("file"), vec![7; 3 * MIB_BYTES]).expect("space");
    mount.unmount().expect("the mount is not busy");
    oracle::assert_clean(&image);
}

#[test]
fn wrong_usage_under_the_name_of_mke2fs_is_its_status() {
    require!(Need::Program("mke2fs"));
    let folder = scratch::folder().expect("a folder");
    let image = folder.path().join("image");
    for name in ["mke2fs", "mkfs.ext4"] {
        let ours = folder.path().join(name);
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_fourscore"), &ours).expect("space");
        for arguments in ["--nonsense", "-b 777", "-b x", "-E nonsense"] {
            let status = |mut command: Command| {
                command.args(arguments.split(' ')).arg(&image).arg("4M");
                command.output().expect("it runs").status.code()
            };
            let theirs = status(tools::command("mke2fs").expect("it was required"));
            assert_eq!(status(Command::new(&ours)), theirs, "{name} {arguments}");
            assert_eq!(theirs, Some(1));
        }
    }
    let (status, _) = refused(&mut mkfs("-b 777", text(&image), "4M"));
    assert_eq!(status, Some(2));
}

#[test]
fn under_the_name_of_mke2fs_only_the_size_of_a_journal_asks_for_one() {
    require!(Need::Program("mke2fs"));
    let place = Place::new();
    let mut with_journal = Vec::new();
    for journal in ["location=5000", "fast_commit_size=300", "size=0", "size=4"] {
        let arguments = format!("-q -F -U {UUID} -E {HASH_SEED} -J {journal}");
        let [ours, theirs] = ["ours", "theirs"].map(|name| place.image(name, 64 * MIB));
        done(&mut mke2fs(&arguments, &theirs, ""));
        let mut command = Command::new(env!("CARGO_BIN_EXE_fourscore"));
        command.arg0("mke2fs").env("SOURCE_DATE_EPOCH", TIME);
        done(command.args(arguments.split_whitespace()).arg(&ours));
        assert_same_images(&ours, &theirs, &arguments);
        let fields = oracle::dumpe2fs_header(&ours).expect("a file system");
        with_journal.push(fields["Filesystem features"].contains("has_journal"));
        fs::remove_file(ours).expect("it was made");
        fs::remove_file(theirs).expect("it was made");
    }
    assert_eq!(with_journal, [false, false, false, true]);
}
