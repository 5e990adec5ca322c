//! `resize` of a mounted file system, by its directory or its image, under our names, and through
//! the ioctl of ext4: the size that programs see, what new groups take, and what is refused.

use std::fs::{self, OpenOptions};
use std::path::Path;

use fourscore_testkit::oracle::dumpe2fs_header;

use crate::common::{failing, fourscore, printed, text};
use crate::mounted::{Mounted, as_a_user, empty, require_mount};

fn blocks_of(mounted: &Mounted) -> u64 {
    rustix::fs::statvfs(&mounted.point)
        .expect("a mount")
        .f_blocks
}

fn fill(mounted: &Mounted, name: &str, mib: usize) {
    let written = fs::write(mounted.path(name), vec![7; mib << 20]);
    written.unwrap_or_else(|why| panic!("{name}: {why}"));
}

#[test]
fn a_mount_grows_by_its_directory_and_by_its_image() {
    require_mount!("dumpe2fs");
    let place = empty("32M");
    let mounted = place.mount("nowriteback");
    let image = place.path("image");
    let before = blocks_of(&mounted);
    fill(&mounted, "first", 12);
    fs::write(mounted.path("too-much"), vec![7; 40 << 20]).expect_err("it is full");
    fs::remove_file(mounted.path("too-much")).expect("it exists");
    let said = printed(&mut fourscore(&["resize", text(&mounted.point), "64M"]));
    assert!(
        said.contains("16384 blocks of 4 KiB, 8192 before"),
        "{said}"
    );
    assert!(blocks_of(&mounted) > before + 7000);
    assert_eq!(fs::metadata(&image).expect("it exists").len(), 64 << 20);
    fill(&mounted, "second", 30);
    // The image is longer already, and named instead of the directory.
    let file = OpenOptions::new()
        .write(true)
        .open(&image)
        .expect("it exists");
    file.set_len(200 << 20).expect("space");
    let said = printed(&mut fourscore(&["resize", text(&image)]));
    assert!(
        said.contains("51200 blocks of 4 KiB, 16384 before"),
        "{said}"
    );
    let said = printed(&mut fourscore(&["resize", text(&image)]));
    assert!(said.contains("has 51200 blocks of 4 KiB already"), "{said}");
    fill(&mounted, "third", 120);
    for (arguments, why) in [
        (vec!["resize", text(&mounted.point), "100M"], "only grows"),
        (vec!["resize", text(&mounted.point), "10x"], "is not a size"),
        (vec!["resize", "-M", text(&image)], "unmount it first"),
        (
            vec!["resize", "-P", text(&mounted.point)],
            "unmount it first",
        ),
        (vec!["resize", "/proc", "10M"], "fourscore"),
    ] {
        let (_, message) = failing(&arguments);
        assert!(message.contains(why), "{arguments:?}: {message}");
    }
    let second = fs::read(mounted.path("second")).expect("it exists");
    assert!(second == vec![7; 30 << 20]);
    mounted.unmount_clean(&place);
    let header = dumpe2fs_header(&image).expect("a header");
    assert_eq!(header["Block count"], "51200");
}

/// `EXT4_IOC_RESIZE_FS` on a directory, by Perl, which has ioctl without a compiler.
fn by_ioctl(point: &Path, blocks: u64) -> Result<(), String> {
    let script = format!(
        r#"sysopen(my $dir, "{}", 0) or die "open: $!"; my $size = pack("Q", {blocks});
        ioctl($dir, 0x40086610, $size) or die "ioctl: $!\n";"#,
        point.display()
    );
    let output = std::process::Command::new("perl")
        .args(["-e", &script])
        .output()
        .expect("perl runs");
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

#[test]
fn the_ioctl_of_ext4_makes_a_mount_larger() {
    require_mount!("perl");
    let place = empty("32M");
    let mounted = place.mount("");
    let before = blocks_of(&mounted);
    // As in Linux, the device has to be long enough.
    let why = by_ioctl(&mounted.point, 16384).expect_err("the image is shorter");
    assert!(why.contains("Invalid argument"), "{why}");
    let image = OpenOptions::new().write(true).open(place.path("image"));
    image.expect("it exists").set_len(64 << 20).expect("space");
    by_ioctl(&mounted.point, 16384).expect("it grows");
    assert!(blocks_of(&mounted) > before + 7000);
    by_ioctl(&mounted.point, 8192).expect_err("it does not shrink");
    fill(&mounted, "file", 40);
    mounted.unmount_clean(&place);
}

#[test]
fn a_mount_of_a_user_grows_by_its_user() {
    require_mount!("setpriv", "unshare", "fusermount3");
    let place = empty("32M");
    let script = r#"
        $user $FOURSCORE mount $IMAGE $POINT
        blocks() { $user stat -f -c %b $POINT; }
        before=$(blocks)
        $user $FOURSCORE resize $POINT 80M
        test $(blocks) -gt $((2 * before))
        $user $FOURSCORE umount $POINT
    "#;
    as_a_user(&place, script).unwrap_or_else(|why| panic!("{why}"));
    place.check("image").expect("it is sound");
}
