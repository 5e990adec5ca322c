//! Images in formats of virtual machines: qcow2 is read, and the others are named with the command
//! that converts them.

use std::fs;
use std::path::Path;

use fourscore_testkit::tools::Need;
use fourscore_testkit::{require, tools};

use crate::common::{failing, fourscore, printed, refused, text, without_lost_and_found};
use crate::place::Place;

const CLUSTER: usize = 1 << 16;

/// A qcow2 image (version 3) with the content of `raw`. Clusters of zeroes are not stored, and the
/// others are in reverse order. Written after docs/interop/qcow2.rst of QEMU.
fn qcow2(raw: &[u8], backing: &str) -> Vec<u8> {
    let clusters: Vec<&[u8]> = raw.chunks(CLUSTER).collect();
    let stored: Vec<usize> = (0..clusters.len())
        .filter(|&nr| clusters[nr].iter().any(|&byte| byte != 0))
        .collect();
    assert!(clusters.len() <= CLUSTER / 8, "one L2 table is enough");
    // Header, refcount table, refcount block, L1 table, L2 table, data.
    let used = 5 + stored.len();
    let mut image = vec![0; used * CLUSTER];
    let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
    let place = |cluster: usize| (cluster * CLUSTER) as u64;
    put(0, b"QFI\xfb");
    put(4, &3_u32.to_be_bytes());
    if !backing.is_empty() {
        put(8, &0x200_u64.to_be_bytes());
        put(
            16,
            &u32::try_from(backing.len()).expect("short").to_be_bytes(),
        );
        put(0x200, backing.as_bytes());
    }
    put(20, &16_u32.to_be_bytes());
    put(24, &(raw.len() as u64).to_be_bytes());
    put(36, &1_u32.to_be_bytes());
    put(40, &place(3).to_be_bytes());
    put(48, &place(1).to_be_bytes());
    put(56, &1_u32.to_be_bytes());
    put(96, &4_u32.to_be_bytes());
    put(100, &104_u32.to_be_bytes());
    put(CLUSTER, &place(2).to_be_bytes());
    for nr in 0..used {
        put(2 * CLUSTER + 2 * nr, &1_u16.to_be_bytes());
    }
    const COPIED: u64 = 1 << 63;
    put(3 * CLUSTER, &(place(4) | COPIED).to_be_bytes());
    for (nr, &cluster) in stored.iter().rev().enumerate() {
        let at = 5 + nr;
        put(
            4 * CLUSTER + 8 * cluster,
            &(place(at) | COPIED).to_be_bytes(),
        );
        put(at * CLUSTER, clusters[cluster]);
    }
    image
}

fn convert(raw: &str, to: &Path) {
    let raw = fs::read(raw).expect("the image");
    fs::write(to, qcow2(&raw, "")).expect("space");
}

#[test]
fn a_qcow2_image_reads_as_the_raw_one() {
    let place = Place::new();
    place.build("raw", &["--size", "16M"]);
    let (raw, packed) = (place.text("raw"), place.path("packed"));
    convert(&raw, &packed);
    assert!(fs::metadata(&packed).expect("an image").len() < 8 << 20);
    let packed = text(&packed);
    let walk = |image: &str| printed(&mut fourscore(&["walk", "--hash", "--full", image]));
    assert_eq!(walk(packed), walk(&raw));
    let check = printed(&mut fourscore(&["check", "-n", packed]));
    assert!(check.contains(": clean: "), "{check}");
    printed(&mut fourscore(&["extract", packed, &place.text("out")]));
    let out = printed(&mut fourscore(&[
        "walk",
        "--host",
        &place.text("out"),
        "--hash",
    ]));
    let tree = printed(&mut fourscore(&[
        "walk",
        "--host",
        &place.text("tree"),
        "--hash",
    ]));
    assert_eq!(without_lost_and_found(&out), without_lost_and_found(&tree));
}

#[test]
fn qemu_agrees() {
    require!(Need::Program("qemu-img"));
    let place = Place::new();
    place.build("raw", &["--size", "16M"]);
    let (raw, ours, packed) = (place.text("raw"), place.text("ours"), place.text("packed"));
    convert(&raw, ours.as_ref());
    let qemu = |words: &[&str]| {
        let words: Vec<_> = words.iter().map(AsRef::as_ref).collect();
        tools::run("qemu-img", &words).expect("it runs")
    };
    qemu(&["compare", "-f", "qcow2", "-F", "raw", &ours, &raw]);
    let pack = |options: &str| {
        qemu(&[
            "convert", "-c", "-f", "raw", "-O", "qcow2", "-o", options, &raw, &packed,
        ]);
    };
    for options in ["compat=v3", "compat=0.10"] {
        pack(options);
        let walk = |image: &str| printed(&mut fourscore(&["walk", "--hash", "--full", image]));
        assert_eq!(walk(&packed), walk(&raw), "{options}");
    }
}

/// A feature that the reader does not know is named.
#[test]
fn a_qcow2_image_with_an_unknown_feature_is_refused() {
    require!(Need::Program("qemu-img"));
    let place = Place::new();
    let packed = place.text("packed");
    let words = [
        "create",
        "-q",
        "-f",
        "qcow2",
        "-o",
        "extended_l2=on",
        &packed,
        "1M",
    ];
    tools::run("qemu-img", &words.map(AsRef::as_ref)).expect("it runs");
    let outcome = fourscore(&["ls", &packed, "/"]).output().expect("it runs");
    let message = String::from_utf8_lossy(&outcome.stderr);
    assert!(
        !outcome.status.success() && message.contains("extended L2"),
        "{message}"
    );
}

#[test]
fn partitions_of_a_qcow2_image_are_read() {
    let place = Place::new();
    let disk = place.text("disk");
    let mut bytes = vec![0; 20 << 20];
    // One partition of 16 MiB at 1 MiB, of Linux.
    bytes[446 + 4] = 0x83;
    bytes[446 + 8..446 + 12].copy_from_slice(&2048_u32.to_le_bytes());
    bytes[446 + 12..446 + 16].copy_from_slice(&32768_u32.to_le_bytes());
    bytes[510..512].copy_from_slice(&[0x55, 0xaa]);
    fs::write(&disk, bytes).expect("space");
    let tree = place.text("tree");
    printed(&mut fourscore(&[
        "build",
        &tree,
        "-o",
        &format!("{disk}@p1"),
        "-L",
        "root",
    ]));
    let packed = place.path("packed");
    convert(&disk, &packed);
    let packed = text(&packed);
    let walk = |image: &str| printed(&mut fourscore(&["walk", "--hash", image]));
    let expected = walk(&format!("{disk}@p1"));
    for part in ["p1", "root", "1M"] {
        assert_eq!(walk(&format!("{packed}@{part}")), expected, "{part}");
    }
    let whole = "is a whole disk, in a qcow2 image; its partitions are p1 'root' (16 MiB) (name";
    refused(&["ls", packed], whole);
}

#[test]
fn a_qcow2_image_is_not_changed() {
    let place = Place::new();
    place.build("raw", &["--size", "8M"]);
    let packed = place.path("packed");
    convert(&place.text("raw"), &packed);
    let before = fs::read(&packed).expect("an image");
    let path = text(&packed);
    let expected = "is a qcow2 image, which can be read, but neither changed nor mounted (convert it \
                    first: qemu-img convert -O raw IMAGE disk.img)";
    refused(&["edit", path, "mkdir", "/x"], expected);
    refused(&["edit", path, "--atomic", "mkdir", "/x"], expected);
    let into = format!("{path}:/");
    refused(&["cp", "/dev/null", &into], expected);
    fs::create_dir(place.path("point")).expect("space");
    refused(&["mount", "-o", "ro", path, &place.text("point")], expected);
    assert_eq!(fs::read(&packed).expect("an image"), before);
}

#[test]
fn other_files_that_a_qcow2_image_names_are_not_opened() {
    let place = Place::new();
    let packed = place.path("packed");
    fs::write(&packed, qcow2(&[0; 4 << 20], "/etc/shadow")).expect("space");
    let expected = "is a qcow2 image with another file, '/etc/shadow', which is not opened";
    refused(&["ls", text(&packed)], expected);
}

#[test]
fn a_damaged_qcow2_image_is_an_error() {
    let place = Place::new();
    place.build("raw", &["--size", "8M"]);
    let mut bytes = qcow2(&fs::read(place.path("raw")).expect("an image"), "");
    let packed = place.path("packed");
    for (at, with) in [
        (20, 63),
        (36, 0xff),
        (40, 0xff),
        (3 * CLUSTER, 0x7f),
        (4, 9),
    ] {
        let old = std::mem::replace(&mut bytes[at], with);
        fs::write(&packed, &bytes).expect("space");
        let (status, message) = failing(&["walk", text(&packed)]);
        assert_eq!(status, Some(1), "{at}: {message}");
        assert!(!message.contains("panicked"), "{at}: {message}");
        bytes[at] = old;
    }
}

#[test]
fn other_formats_are_named_with_the_command_that_converts() {
    let place = Place::new();
    let file = place.path("file");
    let vhd = [&[0; 1 << 20][..], b"conectix", &[0; 504]].concat();
    let start = |magic: &[u8]| [magic, &[0; 5000]].concat();
    for (bytes, name, command) in [
        (
            start(b"KDMV"),
            "a VMDK image",
            "qemu-img convert -O raw IMAGE disk.img",
        ),
        (
            start(b"COWD"),
            "a VMDK image",
            "qemu-img convert -O raw IMAGE disk.img",
        ),
        (
            start(b"vhdxfile"),
            "a VHDX image",
            "qemu-img convert -O raw IMAGE disk.img",
        ),
        (
            start(b"conectix"),
            "a VHD image",
            "qemu-img convert -O raw IMAGE disk.img",
        ),
        (
            start(b"\x3a\xff\x26\xed"),
            "an Android sparse image",
            "simg2img IMAGE disk.img",
        ),
        (
            vhd,
            "a VHD image of fixed size",
            "qemu-img convert -f vpc -O raw IMAGE disk.img",
        ),
    ] {
        fs::write(&file, bytes).expect("space");
        for (words, status) in [
            (["ls", text(&file)].to_vec(), 1),
            (["check", "-n", text(&file)].to_vec(), 8),
            (["edit", text(&file), "rm", "/x"].to_vec(), 1),
        ] {
            let (found, message) = failing(&words);
            let begin = format!("fourscore: {}: is {name}", text(&file));
            assert!(message.starts_with(&begin), "{words:?}: {message}");
            assert!(message.contains(command), "{words:?}: {message}");
            assert_eq!(
                (found, message.lines().count()),
                (Some(status), 1),
                "{words:?}"
            );
        }
    }
}

#[test]
fn a_disk_in_a_vhd_image_of_fixed_size_has_partitions() {
    let place = Place::new();
    let disk = place.text("disk");
    let mut bytes = vec![0; 10 << 20];
    bytes[446 + 4] = 0x83;
    bytes[446 + 8..446 + 12].copy_from_slice(&2048_u32.to_le_bytes());
    bytes[446 + 12..446 + 16].copy_from_slice(&16384_u32.to_le_bytes());
    bytes[510..512].copy_from_slice(&[0x55, 0xaa]);
    bytes.extend([&b"conectix"[..], &[7; 504]].concat());
    fs::write(&disk, bytes).expect("space");
    refused(
        &["ls", &disk],
        "is a whole disk, in a VHD image of fixed size; its partitions are p1",
    );
    printed(&mut fourscore(&["mkfs", "-q", &format!("{disk}@p1")]));
    let footer = fs::read(&disk).expect("a disk").split_off(10 << 20);
    assert_eq!(footer, [&b"conectix"[..], &[7; 504]].concat());
    printed(&mut fourscore(&[
        "edit",
        &format!("{disk}@p1"),
        "mkdir",
        "/x",
    ]));
}
