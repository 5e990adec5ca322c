//! **Purpose.** Tests of calls that are refused: these take no privileges from a file.

use super::*;
use crate::abi::{CopyFileRangeIn, OPEN_KILL_SUIDGID, OpenIn, WriteOut};
use fourscore_testkit::oracle::debugfs_write;

const EFBIG: i32 = 27;
const O_RDWR: u32 = 2;
const O_TRUNC: u32 = 0o1000;

fn open(kernel: &mut Kernel<'_>, node: u64, flags: u32) -> Result<OpenOut, i32> {
    let wanted = OpenIn {
        flags,
        open_flags: OPEN_KILL_SUIDGID,
    };
    kernel.request(opcode::OPEN, node, &[wanted.as_bytes()])
}

fn cut(kernel: &mut Kernel<'_>, node: u64, size: u64) -> Result<(), i32> {
    let wanted = SetattrIn {
        valid: fattr::SIZE | fattr::KILL_SUIDGID,
        size,
        ..SetattrIn::default()
    };
    kernel.setattr(node, wanted).map(drop)
}

fn allocate(kernel: &mut Kernel<'_>, node: u64, mode: u32, length: u64) -> Result<(), i32> {
    let wanted = FallocateIn {
        length,
        mode,
        ..FallocateIn::default()
    };
    let parts = [wanted.as_bytes()];
    kernel
        .request_raw(opcode::FALLOCATE, node, &parts)
        .map(drop)
}

fn copy(kernel: &mut Kernel<'_>, source: u64, target: u64) -> Result<(), i32> {
    let wanted = CopyFileRangeIn {
        nodeid_out: target,
        len: 5,
        ..CopyFileRangeIn::default()
    };
    let parts = [wanted.as_bytes()];
    let copied = kernel.request_raw(opcode::COPY_FILE_RANGE, source, &parts);
    copied.map(drop)
}

fn permissions(kernel: &mut Kernel<'_>, node: u64) -> u32 {
    let found: AttrOut = kernel.request(opcode::GETATTR, node, &[]).expect("there");
    found.attr.mode & 0o7777
}

/// Linux refuses to open such files for writing. Pages that were written to would not be stored,
/// and a reader would get them in place of what the seal covers.
#[test]
fn sealed_files_are_not_opened_for_writing() {
    let image = Image::builder(MiB(32)).kind("ext4").features(&["verity"]);
    let image = image.make().unwrap();
    let (mut file, mut source) = (0, 0);
    with_kernel_of(&image, &SessionOptions::default(), |kernel| {
        [file, source] = ["file", "source"].map(|name| {
            let node = kernel.create(ROOT_ID, name, 0o6755).expect("made").nodeid;
            kernel.write(node, 0, &[7; 80_000], 0).expect("space");
            node
        });
    });
    // VERITY_FL and EXTENTS_FL.
    let command = "set_inode_field /file flags 0x180000";
    debugfs_write(image.path(), &[command]).unwrap();
    with_kernel_of(&image, &SessionOptions::default(), |kernel| {
        for name in ["file", "source"] {
            kernel.lookup(ROOT_ID, name).expect("there");
        }
        kernel.uid = 1000;
        for flags in [1, O_RDWR, O_RDWR | O_TRUNC, O_TRUNC] {
            assert_eq!(open(kernel, file, flags).err(), Some(EPERM), "{flags:o}");
        }
        open(kernel, file, 0).expect("it may be read");
        assert_eq!(cut(kernel, file, 3), Err(EPERM));
        assert_eq!(allocate(kernel, file, 0, 100_000), Err(EPERM));
        assert_eq!(copy(kernel, source, file), Err(EPERM));
        assert_eq!(permissions(kernel, file), 0o6755);
        for node in [file, source] {
            kernel.forget(node, 1);
        }
    });
}

#[test]
fn refused_calls_leave_set_id_bits() {
    const PUNCH: u32 = 1 | 2;
    const COLLAPSE: u32 = 8;
    with_kernel(|kernel| {
        let [file, source, log] = ["file", "source", "log"].map(|name| {
            let node = kernel.create(ROOT_ID, name, 0o6755).expect("made").nodeid;
            kernel.write(node, 0, &[7; 10_000], 0).expect("space");
            node
        });
        // Append only.
        ioctl(kernel, log, 0x4008_6602, 0x8_0020_u32.as_bytes()).expect("root may");
        kernel.uid = 1000;
        assert_eq!(cut(kernel, file, 1 << 50), Err(EFBIG));
        assert_eq!(allocate(kernel, file, 0, 1 << 50), Err(EFBIG));
        assert_eq!(permissions(kernel, file), 0o6755);
        assert_eq!(cut(kernel, log, 3), Err(EPERM));
        for mode in [PUNCH, COLLAPSE] {
            assert_eq!(allocate(kernel, log, mode, 4096), Err(EPERM));
        }
        assert_eq!(open(kernel, log, O_TRUNC).err(), Some(EPERM));
        assert_eq!(copy(kernel, source, log), Err(EPERM));
        assert_eq!(permissions(kernel, log), 0o6755);
        // Calls that succeed take them.
        cut(kernel, file, 3).expect("it may be cut");
        assert_eq!(permissions(kernel, file), 0o755);
        copy(kernel, log, source).expect("space");
        assert_eq!(permissions(kernel, source), 0o755);
        allocate(kernel, log, 0, 20_000).expect("space");
        assert_eq!(permissions(kernel, log), 0o755);
    });
}

/// With `data=journal` a write takes several transactions.
#[test]
fn a_write_that_is_cut_short_reports_its_length() {
    const WRITE_BYTES: u32 = 1 << 20;
    let image = image();
    let device = open_path(image.path(), DeviceOptions::read_write()).unwrap();
    let options = MountOptions::new().parse("data=journal").unwrap();
    let fs = Fs::mount(Arc::new(device), &options).unwrap();
    let mut kernel = Kernel::new(&fs);
    let file = kernel.create(ROOT_ID, "file", 0o644).expect("made").nodeid;
    let data = vec![7; WRITE_BYTES as usize];
    let mut written_bytes = Vec::new();
    let error = loop {
        let wanted = WriteIn {
            offset: written_bytes.iter().copied().map(u64::from).sum(),
            size: WRITE_BYTES,
            ..WriteIn::default()
        };
        let parts = [wanted.as_bytes(), &data];
        match kernel.request::<WriteOut>(opcode::WRITE, file, &parts) {
            Ok(written) => written_bytes.push(written.size),
            Err(error) => break error,
        }
    };
    assert_eq!(error, 28, "no space");
    let last = written_bytes.pop().expect("there was space");
    assert!(0 < last && last < WRITE_BYTES, "{last}");
    assert!(written_bytes.iter().all(|&bytes| bytes == WRITE_BYTES));
    let all: u64 = written_bytes.iter().copied().map(u64::from).sum();
    let found: AttrOut = kernel.request(opcode::GETATTR, file, &[]).expect("there");
    assert_eq!(found.attr.size, all + u64::from(last));
    drop(kernel);
    fs.unmount().expect("not in use");
    assert_clean(image.path());
}
