//! The command under the name dumpe2fs prints what dumpe2fs prints, and has its exit statuses.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use fourscore_testkit::require;
use fourscore_testkit::tools::{self, Need};

use crate::common::text;
use crate::debugfs::{Place, Whose, comparable};

/// Images of several shapes, one with bad blocks.
fn shapes(place: &Place) -> Vec<PathBuf> {
    let bad = place.folder.path().join("bad");
    // More than the direct pointers of an inode.
    let many: Vec<String> = (3000..3300).step_by(3).map(|nr| nr.to_string()).collect();
    fs::write(&bad, many.join("\n")).expect("room");
    let shapes = [
        &["-t", "ext2", "-b", "1024", "-g", "1024", "-l", text(&bad)][..],
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-g",
            "1024",
            "-O",
            "meta_bg,^resize_inode",
        ],
        &["-t", "ext4", "-b", "4096", "-C", "16384", "-O", "bigalloc"],
    ];
    let mut images = vec![place.image()];
    for (nr, shape) in shapes.iter().enumerate() {
        let image = place.folder.path().join(format!("shape-{nr}"));
        let mut mke2fs = tools::command("mke2fs").expect("found before");
        mke2fs
            .args(["-q", "-F"])
            .args(*shape)
            .arg(&image)
            .arg("64M");
        tools::stdout_of(&mut mke2fs).expect("mke2fs runs");
        images.push(image);
    }
    images
}

/// The superblock and the descriptors of a backup, also after changes, and if the primary
/// superblock is gone.
#[test]
fn dumpe2fs_shows_a_backup_as_dumpe2fs_does() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("debugfs"),
        Need::Program("dumpe2fs")
    );
    let place = Place::new();
    let mut compared = 0;
    for image in shapes(&place) {
        let written = ["-w", "-R", "write HOST /new"];
        place.run("debugfs", Whose::Theirs, &written, &image);
        let table = place.run("dumpe2fs", Whose::Theirs, &[], &image);
        let table = String::from_utf8(table.stdout).expect("text");
        let backups = table.lines().filter_map(|line| {
            let number = line.trim().strip_prefix("Backup superblock at ")?;
            number.split(',').next()?.parse::<u64>().ok()
        });
        let backups: Vec<u64> = backups.collect();
        let [first, .., last] = backups[..] else {
            continue;
        };
        compared += 1;
        let size = { table.lines() }
            .find_map(|line| line.strip_prefix("Block size:"))
            .expect("a size");
        let (size, last) = (size.trim(), format!("superblock={last}"));
        let first = format!("superblock={first}");
        let with_size = format!("{first},blocksize={size}");
        for is_gone in [false, true] {
            if is_gone {
                let file = fs::OpenOptions::new().write(true).open(&image);
                let wiped = file.expect("there").write_all_at(&[0; 1024], 1024);
                wiped.expect("it is written");
            }
            for arguments in [
                &["-h", "-o", &first][..],
                &["-o", &last],
                &["-xo", &with_size],
                &["-g", "-o", &last],
                &["-bo", &with_size],
                &["-h", "-o", "superblock=3"],
                &["-h", "-o", &first, "-o", "blocksize=2048"],
                &["-o", "superblock=0"],
                &["-ho", "superblock=1"],
                &["-o", "superblock=1"],
            ] {
                let [ours, theirs] = [Whose::Ours, Whose::Theirs].map(|whose| {
                    let output = place.run("dumpe2fs", whose, arguments, &image);
                    let printed = comparable(&String::from_utf8(output.stdout).expect("text"));
                    // Said on standard output by dumpe2fs.
                    let printed = match printed.contains("find valid filesystem superblock") {
                        true => String::new(),
                        false => printed,
                    };
                    (printed, output.status.success())
                });
                assert_eq!(ours, theirs, "{arguments:?} {image:?} {is_gone}");
            }
        }
    }
    assert_eq!(compared, 3, "all but that of one group");
    for arguments in [
        &["-o", "superblock"][..],
        &["-o", "superblock=x"],
        &["-o", "block=1"],
        &["-o", ""],
    ] {
        let [ours, theirs] = [Whose::Ours, Whose::Theirs].map(|whose| {
            place
                .run("dumpe2fs", whose, arguments, &place.image())
                .status
        });
        assert_eq!(ours.code(), theirs.code(), "{arguments:?}");
    }
}

/// `-m`, and files of e2image, which only dumpe2fs reads.
#[test]
fn dumpe2fs_says_who_uses_the_file_system() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("debugfs"),
        Need::Program("dumpe2fs")
    );
    let place = Place::new();
    let image = place.folder.path().join("mmp");
    let mut mke2fs = tools::command("mke2fs").expect("found before");
    let shape = ["-q", "-F", "-t", "ext4", "-O", "mmp,^metadata_csum"];
    mke2fs.args(shape).arg(&image).arg("16M");
    tools::stdout_of(&mut mke2fs).expect("mke2fs runs");
    let dump = place.run("debugfs", Whose::Theirs, &["-R", "dump_mmp"], &image);
    let dump = String::from_utf8(dump.stdout).expect("text");
    let block = dump
        .lines()
        .find_map(|line| line.strip_prefix("block_number: "));
    let block: u64 = block
        .and_then(|text| text.trim().parse().ok())
        .expect("a block");
    let file = fs::OpenOptions::new()
        .write(true)
        .open(&image)
        .expect("there");
    let at = block * 1024;
    let mut cases = Vec::new();
    for (place_in_block, value) in [
        (4, 0xff4d_4d50_u32),
        (4, 0xe24d_4d50),
        (4, 0xff00_0000),
        // A host that has not released it: waits.
        (4, 5),
        (0, 7),
    ] {
        file.write_all_at(&value.to_le_bytes(), at + place_in_block)
            .expect("space");
        cases.push([Whose::Ours, Whose::Theirs].map(|whose| {
            let output = place.run("dumpe2fs", whose, &["-xm"], &image);
            (
                String::from_utf8(output.stdout).expect("text"),
                output.status.code(),
            )
        }));
    }
    let without = [Whose::Ours, Whose::Theirs].map(|whose| {
        let output = place.run("dumpe2fs", whose, &["-m"], &place.image());
        (
            String::from_utf8(output.stdout).expect("text"),
            output.status.code(),
        )
    });
    cases.push(without);
    for [ours, theirs] in &cases {
        assert_eq!(ours, theirs);
    }
    let statuses: Vec<_> = cases.iter().map(|[ours, _]| ours.1).collect();
    let expected = [0, 1, 1, 0, 2, 2].map(Some);
    assert_eq!(statuses, expected);
    let refused = place.run("dumpe2fs", Whose::Ours, &["-i"], &place.image());
    let message = String::from_utf8(refused.stderr).expect("text");
    assert!(
        message.contains("e2image -r") && refused.status.code() == Some(1),
        "{message}"
    );
}

#[test]
fn dumpe2fs_prints_what_dumpe2fs_prints() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("debugfs"),
        Need::Program("dumpe2fs")
    );
    let place = Place::new();
    let images = shapes(&place);
    let options = [
        &["-h"][..],
        &[],
        &["-x"],
        &["-hx"],
        &["-g"],
        &["-gx"],
        &["-gh"],
        &["-b"],
        &["-bg"],
    ];
    for arguments in options {
        for image in &images {
            let [ours, theirs] = [Whose::Ours, Whose::Theirs].map(|whose| {
                let output = place.run("dumpe2fs", whose, arguments, image);
                assert!(output.status.success(), "{output:?}");
                comparable(&String::from_utf8(output.stdout).expect("text"))
            });
            assert_eq!(ours, theirs, "{arguments:?} {image:?}");
        }
    }
}
