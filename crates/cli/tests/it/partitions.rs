//! `IMAGE@PART`: file systems in partitions of a disk, by number, name, UUID, label and offset.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use fourscore_testkit::oracle::e2fsck;
use fourscore_testkit::require;
use fourscore_testkit::tools::{self, Need};

use crate::common::{failing, fourscore, printed, text};
use crate::place::Place;

const MIB: u64 = 1 << 20;
const SECTOR: u64 = 512;

/// A disk of 64 MiB with a DOS table: partition 1 of 16 MiB at 1 MiB, and a logical partition 5 of
/// 16 MiB at 34 MiB. The table is checked with libblkid.
fn dos_disk(path: &Path) {
    let disk = File::create(path).expect("space");
    disk.set_len(64 * MIB).expect("space");
    let entry = |sector: u64, nr: u64, kind: u8, start: u64, len: u64| {
        let word = |bytes: u64| u32::try_from(bytes / SECTOR).expect("small").to_le_bytes();
        let bytes = [&[0, 0, 0, 0, kind, 0, 0, 0][..], &word(start), &word(len)].concat();
        disk.write_all_at(&bytes, sector + 446 + 16 * nr)
            .expect("space");
        disk.write_all_at(&[0x55, 0xaa], sector + 510)
            .expect("space");
    };
    entry(0, 0, 0x83, MIB, 16 * MIB);
    entry(0, 1, 0x05, 32 * MIB, 32 * MIB);
    entry(32 * MIB, 0, 0x83, 2 * MIB, 16 * MIB);
    disk.write_all_at(&[0x0d, 0xf0, 0xad, 0x8b], 440)
        .expect("space");
}

/// A disk with a GPT: partitions with these names, as systemd-repart makes it.
fn gpt_disk(place: &Place, names: [&str; 2]) -> String {
    let definitions = place.path("definitions");
    fs::create_dir(&definitions).expect("space");
    for (nr, label) in (1..).zip(names) {
        let one = format!(
            "[Partition]\nType=linux-generic\nLabel={label}\nSizeMinBytes=16M\nSizeMaxBytes=16M\n"
        );
        fs::write(definitions.join(format!("{nr}.conf")), one).expect("space");
    }
    let disk = place.text("gpt.img");
    let definitions = format!("--definitions={}", text(&definitions));
    let arguments = [
        "--empty=create",
        "--size=64M",
        "--dry-run=no",
        &definitions,
        &disk,
    ];
    let output = Command::new("systemd-repart").args(arguments).output();
    assert!(output.expect("it runs").status.success());
    disk
}

/// What libblkid says of a partition.
fn partx(disk: &str, number: u32, column: &str) -> String {
    let number = number.to_string();
    let words = ["-g", "-b", "-r", "-n", &number, "-o", column, disk].map(AsRef::as_ref);
    tools::run("partx", &words)
        .expect("a table")
        .trim()
        .to_owned()
}

/// The bytes of a partition as an image of their own.
fn part(place: &Place, disk: &str, start: u64) -> String {
    let mut bytes = vec![0; 16 << 20];
    let file = File::open(disk).expect("the disk");
    file.read_exact_at(&mut bytes, start).expect("a partition");
    let path = place.path("part");
    fs::write(&path, bytes).expect("space");
    text(&path).to_owned()
}

/// Every verb takes a partition; mkfs and build fill it to its end and no further.
#[test]
fn a_partition_is_named_by_number_and_uuid() {
    require!(Need::Program("partx"), Need::Program("e2fsck"));
    let place = Place::new();
    let disk = place.text("disk.img");
    dos_disk(Path::new(&disk));
    assert_eq!(partx(&disk, 5, "START"), (34 * MIB / SECTOR).to_string());
    let at = |part: &str| format!("{disk}@{part}");
    let before = fs::read(&disk).expect("the disk");
    printed(&mut fourscore(&["mkfs", "-q", "-L", "first", &at("p1")]));
    printed(&mut fourscore(&[
        "build",
        &place.text("tree"),
        "-L",
        "fifth",
        "-o",
        &at("p5"),
    ]));
    let after = fs::read(&disk).expect("the disk");
    for outside in [0..MIB, 17 * MIB..34 * MIB, 50 * MIB..64 * MIB] {
        let range = usize::try_from(outside.start).unwrap()..usize::try_from(outside.end).unwrap();
        assert!(before[range.clone()] == after[range], "{outside:?}");
    }
    let info = printed(&mut fourscore(&["info", &at("p1")]));
    assert!(info.contains("Block count:              16384"), "{info}");
    let uuid = partx(&disk, 5, "UUID");
    assert_eq!(uuid, "8badf00d-05");
    let whole = printed(&mut fourscore(&["walk", "--hash", &at("p5")]));
    assert!(whole.lines().count() > 5, "{whole}");
    for name in [
        "8badf00d-05",
        "8BADF00D-05",
        "P5",
        "fifth",
        "34M",
        "69632s",
        "0x2200000",
    ] {
        let walk = printed(&mut fourscore(&["walk", "--hash", &at(name)]));
        assert_eq!(walk, whole, "{name}");
    }
    printed(&mut fourscore(&["edit", &at("first"), "mkdir", "/made"]));
    for (how, name) in [("-n", "p1"), ("-p", "8badf00d-01"), ("-y", "0x100000")] {
        let report = printed(&mut fourscore(&["check", how, &at(name)]));
        let expected = format!("{}: clean: ", at(name));
        assert!(report.starts_with(&expected), "{report}");
    }
    let file = place.path("file");
    fs::write(&file, "text").expect("space");
    printed(&mut fourscore(&[
        "cp",
        text(&file),
        &format!("{}:/made", at("p1")),
    ]));
    let out = place.text("out");
    printed(&mut fourscore(&[
        "cp",
        &format!("{}:/made/file", at("8badf00d-01")),
        &out,
    ]));
    assert_eq!(fs::read(&out).expect("the copy"), b"text");
    for start in [MIB, 34 * MIB] {
        let part = part(&place, &disk, start);
        let result = e2fsck(Path::new(&part)).expect("it runs");
        assert!(result.is_clean(), "{}", result.output);
    }
}

#[test]
fn a_partition_is_named_by_its_name_in_a_gpt() {
    require!(Need::Program("partx"), Need::Program("systemd-repart"));
    let place = Place::new();
    let disk = gpt_disk(&place, ["boot", "root"]);
    let at = |part: &str| format!("{disk}@{part}");
    printed(&mut fourscore(&["mkfs", "-q", "-L", "label", &at("root")]));
    let uuid = partx(&disk, 2, "UUID");
    let info = printed(&mut fourscore(&["info", &at("p2")]));
    for name in [&uuid, &uuid.to_uppercase(), "label"] {
        assert_eq!(
            printed(&mut fourscore(&["info", &at(name)])),
            info,
            "{name}"
        );
    }
    // Both file systems have one label.
    printed(&mut fourscore(&["mkfs", "-q", "-L", "label", &at("boot")]));
    let (status, said) = failing(&["info", &at("label")]);
    assert_eq!(status, Some(2));
    assert!(
        said.contains("has several partitions 'label': p1, p2; give a number"),
        "{said}"
    );
    let (_, said) = failing(&["info", &disk]);
    let expected = format!(
        "fourscore: {disk}: is a whole disk; its partitions are p1 'boot' (16 MiB), p2 'root' \
         (16 MiB) (name one, as in disk.img@p2)\n"
    );
    assert_eq!(said, expected);
}

#[test]
fn a_number_is_that_of_a_partition_whatever_others_are_called() {
    require!(Need::Program("partx"), Need::Program("systemd-repart"));
    let place = Place::new();
    let disk = gpt_disk(&place, ["p2", "p1"]);
    printed(&mut fourscore(&[
        "mkfs",
        "-q",
        "-L",
        "two",
        &format!("{disk}@p2"),
    ]));
    let start = partx(&disk, 2, "START");
    let info = printed(&mut fourscore(&["info", &format!("{disk}@{start}s")]));
    assert!(info.contains("two"), "{info}");
}

#[test]
fn a_whole_disk_names_its_partitions() {
    let place = Place::new();
    let disk = place.text("disk.img");
    dos_disk(Path::new(&disk));
    let expected = format!(
        "fourscore: {disk}: is a whole disk; its partitions are p1 (16 MiB), p5 (16 MiB) (name \
         one, as in disk.img@p2)\n"
    );
    for (arguments, status) in [
        (&["ls", &disk][..], 1),
        (&["edit", &disk, "rm", "/x"], 1),
        (&["edit", &disk, "--atomic", "rm", "/x"], 1),
        (&["check", "-n", &disk], 8),
    ] {
        let (found, said) = failing(arguments);
        assert_eq!(
            (said, found),
            (expected.clone(), Some(status)),
            "{arguments:?}"
        );
    }
    let (status, said) = failing(&["ls", &format!("{disk}@p3")]);
    assert_eq!(status, Some(2));
    let expected =
        format!("{disk} has no partition 'p3'; its partitions are p1 (16 MiB), p5 (16 MiB)");
    assert!(said.contains(&expected), "{said}");
    let plain = place.text("plain");
    printed(&mut fourscore(&["mkfs", "-q", &plain, "8M"]));
    let (_, said) = failing(&["ls", &format!("{plain}@p1")]);
    assert!(
        said.contains("has no partition table, so no partition 'p1'"),
        "{said}"
    );
}

#[test]
fn a_size_that_a_partition_does_not_have_is_refused() {
    let place = Place::new();
    let disk = place.text("disk.img");
    dos_disk(Path::new(&disk));
    let part = format!("{disk}@p1");
    let before = fs::read(&disk).expect("the disk");
    let (_, said) = failing(&["mkfs", &part, "17M"]);
    assert!(
        said.contains("is larger than the partition, which has 16777216 bytes"),
        "{said}"
    );
    let tree = place.text("tree");
    let (_, said) = failing(&["build", &tree, "--size", "17M", "-o", &part]);
    assert!(
        said.contains("is larger than the partition, which has 16777216 bytes"),
        "{said}"
    );
    assert!(fs::read(&disk).expect("the disk") == before);
}

/// The logical partition of an extended one that refers to itself is listed once, with the damage.
#[test]
fn a_cyclic_chain_of_partitions_is_reported() {
    let place = Place::new();
    let disk = place.text("cyclic.img");
    dos_disk(Path::new(&disk));
    let file = File::options().write(true).open(&disk).expect("the disk");
    // The second entry of the extended partition is an extended one that begins with it.
    let entry = [0, 0, 0, 0, 0x05, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0];
    file.write_all_at(&entry, 32 * MIB + 446 + 16)
        .expect("space");
    let damage = "its extended partition refers back to itself";
    for image in [disk.clone(), format!("{disk}@p9")] {
        let (_, message) = failing(&["info", &image]);
        assert!(message.contains(damage), "{message}");
        assert_eq!(message.matches("p5 (16 MiB)").count(), 1, "{message}");
        assert!(!message.contains("p6"), "{message}");
    }
    let made = fourscore(&["mkfs", "-q", &format!("{disk}@p5")]).output();
    let made = made.expect("it runs");
    assert!(made.status.success(), "{made:?}");
    assert!(String::from_utf8_lossy(&made.stderr).contains(damage));
}
