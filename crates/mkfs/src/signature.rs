//! **Purpose.** Recognises what a device holds, so that nothing is overwritten by mistake.
//!
//! **Model.** Each format has a few bytes that are always the same at the same place. Only those
//! are compared; whether the rest is sound does not matter here.

use std::fmt;
use std::io;

use fourscore_block::BlockDevice;

/// Something recognised on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature {
    name: &'static str,
}

impl Signature {
    /// What it is, such as `xfs`.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.name
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name {
            "a partition table" | "swap space" | "an encrypted volume" => f.write_str(self.name),
            name => write!(f, "a file system or volume ({name})"),
        }
    }
}

/// Name, place in bytes, and bytes.
const KNOWN: &[(&str, u64, &[u8])] = &[
    ("ext2, ext3 or ext4", 1080, b"\x53\xef"),
    ("xfs", 0, b"XFSB"),
    ("btrfs", 65_600, b"_BHRfS_M"),
    ("f2fs", 1024, b"\x10\x20\xf5\xf2"),
    ("erofs", 1024, b"\xe2\xe1\xf5\xe0"),
    (
        "bcachefs",
        4120,
        b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81",
    ),
    ("squashfs", 0, b"hsqs"),
    ("ntfs", 3, b"NTFS    "),
    ("exfat", 3, b"EXFAT   "),
    ("fat", 82, b"FAT32   "),
    ("fat", 54, b"FAT16   "),
    ("fat", 54, b"FAT12   "),
    ("jfs", 32_768, b"JFS1"),
    ("reiserfs", 65_588, b"ReIsEr"),
    ("iso9660", 32_769, b"CD001"),
    ("an encrypted volume", 0, b"LUKS\xba\xbe"),
    ("lvm2", 536, b"LVM2 001"),
    ("swap space", 4086, b"SWAPSPACE2"),
    ("a partition table", 512, b"EFI PART"),
    ("a partition table", 510, b"\x55\xaa"),
];

/// What the device holds, as far as one of the known formats is recognised.
///
/// # Errors
/// Those of reading.
pub fn find_signature<D: BlockDevice + ?Sized>(device: &D) -> io::Result<Option<Signature>> {
    let mut buf = [0; 16];
    for &(name, at, expected) in KNOWN {
        let found = &mut buf[..expected.len()];
        if at + expected.len() as u64 > device.len_bytes() {
            continue;
        }
        device.read_at(found, at)?;
        if found == expected {
            return Ok(Some(Signature { name }));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fourscore_block::RamDevice;

    #[test]
    fn each_format_is_found_and_zeroes_are_nothing() {
        for &(name, at, bytes) in KNOWN {
            let device = RamDevice::new(1 << 20);
            assert_eq!(find_signature(&device).unwrap(), None);
            device.write_at(bytes, at).unwrap();
            let found = find_signature(&device).unwrap().map(Signature::name);
            assert_eq!(found, Some(name));
        }
    }

    #[test]
    fn a_tiny_device_is_not_read_past_its_end() {
        assert_eq!(find_signature(&RamDevice::new(100)).unwrap(), None);
    }
}
