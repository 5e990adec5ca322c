//! Tests on a real block device: a loop device over a scratch file.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use fourscore_testkit::require;
use fourscore_testkit::tools::Need;

use crate::{
    Access, BlockDevice, Caching, DeviceOptions, IoBuf, UringDevice, create_image, open_path,
};

/// A loop device, detached at the end.
struct Loop {
    path: PathBuf,
}

impl Loop {
    fn over(image: &Path) -> Self {
        let output = Command::new("losetup")
            .arg("--find")
            .arg("--show")
            .arg(image)
            .output();
        let output = output.expect("losetup starts");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let name = String::from_utf8(output.stdout).expect("a path");
        Self {
            path: PathBuf::from(name.trim()),
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let status = Command::new("losetup")
            .arg("--detach")
            .arg(&self.path)
            .status();
        assert!(
            status.is_ok_and(|status| status.success()),
            "{:?} stays",
            self.path
        );
    }
}

#[test]
fn a_block_device_is_read_written_and_discarded() {
    require!(Need::KernelMount);
    let dir = tempfile::tempdir().expect("a scratch directory");
    let image = dir.path().join("image");
    drop(create_image(&image, 4 << 20, DeviceOptions::default()).expect("create"));
    let block_device = Loop::over(&image);

    for caching in [Caching::HostCached, Caching::Direct] {
        let options = DeviceOptions {
            caching,
            ..DeviceOptions::read_write()
        };
        let device = open_path(&block_device.path, options).expect("open");
        assert_eq!(device.len_bytes(), 4 << 20);
        let hints = device.hints();
        assert_eq!((hints.logical_sector_bytes, hints.read_only), (512, false));
        assert!(hints.max_segment_bytes >= 4096);

        let block = IoBuf::from(&[7; 8192][..]);
        device.write_at(&block, 1 << 20).expect("aligned");
        device
            .write_at(b"odd", (1 << 20) + 4095)
            .expect("not aligned");
        device.flush().expect("flush");
        let mut back = IoBuf::zeroed(8192);
        device
            .read_at(back.as_mut_slice().expect("own"), 1 << 20)
            .expect("read");
        assert_eq!(
            (&back[4094..4099], back[8191]),
            (&b"\x07odd\x07"[..], 7),
            "{caching:?}"
        );

        device
            .write_zeroes((1 << 20)..(1 << 20) + 4096)
            .expect("zero");
        device
            .read_at(back.as_mut_slice().expect("own"), 1 << 20)
            .expect("read");
        assert_eq!(
            (back[0], back[4094], back[4096]),
            (0, 0, b'd'),
            "{caching:?}"
        );
        match device.discard(0..4 << 20) {
            Ok(()) => assert!(hints.discard),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}"),
        }
        let past = device
            .read_at(&mut [0; 2], (4 << 20) - 1)
            .expect_err("past the end");
        assert_eq!(past.kind(), ErrorKind::UnexpectedEof);
    }
}

#[test]
fn a_block_device_has_one_writer() {
    require!(Need::KernelMount);
    let dir = tempfile::tempdir().expect("a scratch directory");
    let image = dir.path().join("image");
    drop(create_image(&image, 1 << 20, DeviceOptions::default()).expect("create"));
    let block_device = Loop::over(&image);
    let first = open_path(&block_device.path, DeviceOptions::read_write()).expect("open");
    let second = open_path(&block_device.path, DeviceOptions::read_write());
    assert_eq!(second.expect_err("taken").kind(), ErrorKind::ResourceBusy);
    let reader = open_path(&block_device.path, DeviceOptions::default()).expect("readers may");
    assert!(reader.hints().read_only);
    assert_eq!(DeviceOptions::default().access, Access::ReadOnly);
    drop(first);
    // The same device through io_uring.
    let Ok(device) = UringDevice::new(reader) else {
        return;
    };
    let mut batch = crate::Batch::new();
    batch.read(vec![IoBuf::zeroed(4096)], 4096);
    assert_eq!(
        *device.submit(batch).wait_all_ok().expect("read")[0][0],
        [0; 4096]
    );
}
