//! **Purpose.** Says what a file is that was given as an image and holds no ext2, ext3 or ext4: a
//! disk with partitions, an image in the format of a virtual machine, a compressed file, another
//! file system.

use fourscore_block::{BlockDevice, DeviceOptions, Sharing, open_path};
use fourscore_mkfs::find_signature;

use crate::failure::Failure;
use crate::image::ImageSpec;
use crate::{partition, qcow2};

/// How an image of a virtual machine becomes a raw one.
pub(crate) const QEMU: &str = "convert it first: qemu-img convert -O raw IMAGE disk.img";
const VHD_MAGIC: &[u8; 8] = b"conectix";
const FIXED_VHD: &str = ", in a VHD image of fixed size";
const UNPACK: &str = "unpack it first, with the program of that name";

/// A format that holds an image in another form.
struct Format {
    name: &'static str,
    at: u64,
    magic: &'static [u8],
    advice: &'static str,
}

const fn format(name: &'static str, at: u64, magic: &'static [u8], advice: &'static str) -> Format {
    Format {
        name,
        at,
        magic,
        advice,
    }
}

const FORMATS: [Format; 17] = [
    format(qcow2::NAME, 0, qcow2::MAGIC, QEMU),
    format("a VMDK image", 0, b"KDMV", QEMU),
    format("a VMDK image", 0, b"COWD", QEMU),
    format("a VMDK image", 0, b"# Disk DescriptorFile", QEMU),
    format("a VDI image", 64, b"\x7f\x10\xda\xbe", QEMU),
    format("a VHDX image", 0, b"vhdxfile", QEMU),
    format("a VHD image", 0, VHD_MAGIC, QEMU),
    format(
        "an Android sparse image",
        0,
        b"\x3a\xff\x26\xed",
        "convert it first: simg2img IMAGE disk.img",
    ),
    format("compressed (gzip)", 0, b"\x1f\x8b", UNPACK),
    format("compressed (zstd)", 0, b"\x28\xb5\x2f\xfd", UNPACK),
    format("compressed (xz)", 0, b"\xfd7zXZ\0", UNPACK),
    format("compressed (bzip2)", 0, b"BZh", UNPACK),
    format("compressed (lz4)", 0, b"\x04\x22\x4d\x18", UNPACK),
    format("a zip archive", 0, b"PK\x03\x04", UNPACK),
    format("a cpio archive", 0, b"07070", UNPACK),
    format(
        "a tar archive",
        257,
        b"ustar",
        "fourscore build IMAGE -o disk.ext4 makes an image of it",
    ),
    format(
        "an encrypted volume (LUKS)",
        0,
        b"LUKS\xba\xbe",
        "open it with cryptsetup, and give the device",
    ),
];

/// The error of a file that holds no file system of ext2, ext3 or ext4 where it is looked for;
/// `None` if nothing is recognised.
pub(crate) fn failure(spec: &ImageSpec) -> Option<Failure> {
    if spec.offset_bytes != 0 || spec.len_bytes.is_some() {
        return None;
    }
    let name = spec.path.display().to_string();
    let unlocked = DeviceOptions {
        sharing: Sharing::Unlocked,
        ..DeviceOptions::default()
    };
    let device = open_path(&spec.path, unlocked).ok()?;
    let has_vhd_footer = has_vhd_footer(&device);
    if qcow2::is_one(&spec.path)
        && let Some(disk) = partition::describe(&spec.path)
    {
        let failure = Failure::new(name, format!("is a whole disk, in {}; {disk}", qcow2::NAME));
        return Some(failure.advise("name one, as in disk.qcow2@p2"));
    }
    if let Some(found) = FORMATS.iter().find(|format| format.is_of(&device)) {
        let failure = Failure::new(name, format_args!("is {}, not a raw image", found.name));
        return Some(failure.advise(found.advice));
    }
    if let Some(disk) = partition::describe(&spec.path) {
        let vhd = if has_vhd_footer { FIXED_VHD } else { "" };
        let failure = Failure::new(name, format!("is a whole disk{vhd}; {disk}"));
        return Some(failure.advise("name one, as in disk.img@p2"));
    }
    if has_vhd_footer {
        let failure = Failure::new(name, "is a VHD image of fixed size, and has no file system");
        return Some(
            failure.advise("convert it first: qemu-img convert -f vpc -O raw IMAGE disk.img"),
        );
    }
    let other = find_signature(&device).ok()??;
    let why = format_args!("holds {other}, not ext2, ext3 or ext4");
    (other.name() != "ext2, ext3 or ext4").then(|| Failure::new(name, why))
}

/// Whether the last sector is the footer of a VHD image. The other sectors of one of fixed size are
/// those of the disk.
fn has_vhd_footer(device: &dyn BlockDevice) -> bool {
    let mut start = [0; VHD_MAGIC.len()];
    let at = device.len_bytes().checked_sub(512);
    at.is_some_and(|at| device.read_at(&mut start, at).is_ok()) && start == *VHD_MAGIC
}

impl Format {
    fn is_of(&self, device: &dyn BlockDevice) -> bool {
        let mut start = [0; 32];
        let start = &mut start[..self.magic.len()];
        device.read_at(start, self.at).is_ok() && start == self.magic
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn formats_are_named_with_what_helps() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        let spec = |path: &PathBuf| ImageSpec {
            path: path.clone(),
            offset_bytes: 0,
            len_bytes: None,
            part: None,
        };
        for format in &FORMATS {
            let at = usize::try_from(format.at).expect("small");
            let bytes = [&vec![0; at][..], format.magic, &[0; 4096]].concat();
            std::fs::write(&path, bytes).expect("space");
            let said = failure(&spec(&path)).expect(format.name).to_string();
            assert!(
                said.contains(format.name) && said.contains(format.advice),
                "{said}"
            );
        }
        let xfs = [&b"XFSB"[..], &[0; 100_000]].concat();
        std::fs::write(&path, xfs).expect("space");
        let said = failure(&spec(&path)).expect("xfs").to_string();
        assert!(said.contains("(xfs), not ext2, ext3 or ext4"), "{said}");
        std::fs::write(&path, [0; 4096]).expect("space");
        assert!(failure(&spec(&path)).is_none());
        let inside = ImageSpec {
            offset_bytes: 512,
            ..spec(&path)
        };
        assert!(failure(&inside).is_none());
    }
}
