//! **Purpose.** The structures, numbers and flags of `linux/fuse.h`, version 7.42.
//!
//! **Model.** All numbers have the byte order of the machine. Each structure is copied out of the
//! bytes of a request, which may lie anywhere, and its size is asserted when this is compiled.
//! Fields keep the kernel's names.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The major version of the protocol.
pub(crate) const MAJOR: u32 = 7;
/// The newest minor version implemented here.
pub(crate) const MINOR: u32 = 42;
/// The oldest minor version with everything that this server needs (Linux 5.4).
pub(crate) const OLDEST_MINOR: u32 = 31;
/// The node of the root directory.
pub(crate) const ROOT_ID: u64 = 1;
/// The code of a notice that invalidates an inode, in the header's error field.
pub(crate) const NOTIFY_INVAL_INODE: i32 = 2;
/// Entries of a directory begin at multiples of this, in bytes.
pub(crate) const DIRENT_ALIGN: usize = 8;

macro_rules! structures {
    ($($(#[doc = $doc:literal])* $name:ident: $bytes:literal { $($field:ident: $kind:ty,)* })*) => {
        $(
            $(#[doc = $doc])*
            #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
            #[repr(C)]
            pub(crate) struct $name {
                $(pub(crate) $field: $kind,)*
            }
            const _: () = assert!(size_of::<$name>() == $bytes);
        )*
    };
}

structures! {
    /// The header of each request.
    InHeader: 40 {
        len: u32,
        opcode: u32,
        unique: u64,
        nodeid: u64,
        uid: u32,
        gid: u32,
        pid: u32,
        total_extlen: u16,
        padding: u16,
    }
    /// The header of each reply.
    OutHeader: 16 {
        len: u32,
        error: i32,
        unique: u64,
    }
    /// A notice that invalidates the kernel's cached state of an inode.
    InvalidInodeOut: 40 {
        header: OutHeader,
        ino: u64,
        off: i64,
        len: i64,
    }
    /// `INIT`: the kernel's version and features, without the part that older kernels do not send.
    InitIn: 16 {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u32,
    }
    /// The reply to `INIT`: the features used.
    InitOut: 64 {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u32,
        max_background: u16,
        congestion_threshold: u16,
        max_write: u32,
        time_gran: u32,
        max_pages: u16,
        map_alignment: u16,
        flags2: u32,
        max_stack_depth: u32,
        request_timeout: u16,
        unused: [u16; 11],
    }
    /// The attributes of stat(2).
    Attr: 88 {
        ino: u64,
        size: u64,
        blocks: u64,
        atime: u64,
        mtime: u64,
        ctime: u64,
        atimensec: u32,
        mtimensec: u32,
        ctimensec: u32,
        mode: u32,
        nlink: u32,
        uid: u32,
        gid: u32,
        rdev: u32,
        blksize: u32,
        flags: u32,
    }
    /// An inode that was looked up, and how long its name and attributes are valid.
    EntryOut: 128 {
        nodeid: u64,
        generation: u64,
        entry_valid: u64,
        attr_valid: u64,
        entry_valid_nsec: u32,
        attr_valid_nsec: u32,
        attr: Attr,
    }
    AttrOut: 104 {
        attr_valid: u64,
        attr_valid_nsec: u32,
        dummy: u32,
        attr: Attr,
    }
    ForgetIn: 8 {
        nlookup: u64,
    }
    ForgetOne: 16 {
        nodeid: u64,
        nlookup: u64,
    }
    BatchForgetIn: 8 {
        count: u32,
        dummy: u32,
    }
    SetattrIn: 88 {
        valid: u32,
        padding: u32,
        fh: u64,
        size: u64,
        lock_owner: u64,
        atime: u64,
        mtime: u64,
        ctime: u64,
        atimensec: u32,
        mtimensec: u32,
        ctimensec: u32,
        mode: u32,
        unused4: u32,
        uid: u32,
        gid: u32,
        unused5: u32,
    }
    MknodIn: 16 {
        mode: u32,
        rdev: u32,
        umask: u32,
        padding: u32,
    }
    MkdirIn: 8 {
        mode: u32,
        umask: u32,
    }
    RenameIn: 8 {
        newdir: u64,
    }
    Rename2In: 16 {
        newdir: u64,
        flags: u32,
        padding: u32,
    }
    LinkIn: 8 {
        oldnodeid: u64,
    }
    OpenIn: 8 {
        flags: u32,
        open_flags: u32,
    }
    /// `CREATE` and `TMPFILE`.
    CreateIn: 16 {
        flags: u32,
        mode: u32,
        umask: u32,
        open_flags: u32,
    }
    OpenOut: 16 {
        fh: u64,
        open_flags: u32,
        backing_id: i32,
    }
    ReleaseIn: 24 {
        fh: u64,
        flags: u32,
        release_flags: u32,
        lock_owner: u64,
    }
    /// `READ`, `READDIR` and `READDIRPLUS`.
    ReadIn: 40 {
        fh: u64,
        offset: u64,
        size: u32,
        read_flags: u32,
        lock_owner: u64,
        flags: u32,
        padding: u32,
    }
    WriteIn: 40 {
        fh: u64,
        offset: u64,
        size: u32,
        write_flags: u32,
        lock_owner: u64,
        flags: u32,
        padding: u32,
    }
    WriteOut: 8 {
        size: u32,
        padding: u32,
    }
    StatfsOut: 80 {
        blocks: u64,
        bfree: u64,
        bavail: u64,
        files: u64,
        ffree: u64,
        bsize: u32,
        namelen: u32,
        frsize: u32,
        padding: u32,
        spare: [u32; 6],
    }
    FsyncIn: 16 {
        fh: u64,
        fsync_flags: u32,
        padding: u32,
    }
    /// `SETXATTR` of kernels without `SETXATTR_EXT`.
    OldSetxattrIn: 8 {
        size: u32,
        flags: u32,
    }
    SetxattrIn: 16 {
        size: u32,
        flags: u32,
        setxattr_flags: u32,
        padding: u32,
    }
    /// `GETXATTR` and `LISTXATTR`.
    GetxattrIn: 8 {
        size: u32,
        padding: u32,
    }
    GetxattrOut: 8 {
        size: u32,
        padding: u32,
    }
    IoctlIn: 32 {
        fh: u64,
        flags: u32,
        cmd: u32,
        arg: u64,
        in_size: u32,
        out_size: u32,
    }
    IoctlOut: 16 {
        result: i32,
        flags: u32,
        in_iovs: u32,
        out_iovs: u32,
    }
    FallocateIn: 32 {
        fh: u64,
        offset: u64,
        length: u64,
        mode: u32,
        padding: u32,
    }
    LseekIn: 24 {
        fh: u64,
        offset: u64,
        whence: u32,
        padding: u32,
    }
    LseekOut: 8 {
        offset: u64,
    }
    CopyFileRangeIn: 56 {
        fh_in: u64,
        off_in: u64,
        nodeid_out: u64,
        fh_out: u64,
        off_out: u64,
        len: u64,
        flags: u64,
    }
    CopyFileRangeOut: 8 {
        bytes_copied: u64,
    }
    /// An entry of a directory; the name follows, and zeroes up to a multiple of eight bytes.
    Dirent: 24 {
        ino: u64,
        off: u64,
        namelen: u32,
        kind: u32,
    }
    StatxIn: 24 {
        getattr_flags: u32,
        reserved: u32,
        fh: u64,
        sx_flags: u32,
        sx_mask: u32,
    }
    SxTime: 16 {
        tv_sec: i64,
        tv_nsec: u32,
        reserved: i32,
    }
    StatxOut: 288 {
        attr_valid: u64,
        attr_valid_nsec: u32,
        flags: u32,
        spare_out: [u64; 2],
        mask: u32,
        blksize: u32,
        attributes: u64,
        nlink: u32,
        uid: u32,
        gid: u32,
        mode: u16,
        spare0: u16,
        ino: u64,
        size: u64,
        blocks: u64,
        attributes_mask: u64,
        atime: SxTime,
        btime: SxTime,
        ctime: SxTime,
        mtime: SxTime,
        rdev_major: u32,
        rdev_minor: u32,
        dev_major: u32,
        dev_minor: u32,
        spare2: [u64; 14],
    }
    /// `FS_IOC_FSGETXATTR` and `FS_IOC_FSSETXATTR`.
    Fsxattr: 28 {
        xflags: u32,
        extsize: u32,
        nextents: u32,
        projid: u32,
        cowextsize: u32,
        pad: [u8; 8],
    }
    /// `FITRIM`.
    FstrimRange: 24 {
        start: u64,
        len: u64,
        minlen: u64,
    }
    /// A ring entry's fields beside the request or reply: the id with which the reply is committed,
    /// and the length of the payload.
    UringEntInOut: 32 {
        flags: u64,
        commit_id: u64,
        payload_sz: u32,
        padding: u32,
        reserved: u64,
    }
    /// In the command area of a ring's submission.
    UringCmdReq: 24 {
        flags: u64,
        commit_id: u64,
        qid: u16,
        padding: [u8; 6],
    }
}

/// The header area of a ring entry, for a request and then for its reply.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct UringReqHeader {
    /// An [`InHeader`], then an [`OutHeader`].
    pub(crate) in_out: [u8; 128],
    /// The first structure of the request's arguments, if it has one.
    pub(crate) op_in: [u8; 128],
    pub(crate) ring_ent_in_out: UringEntInOut,
}
const _: () = assert!(size_of::<UringReqHeader>() == 288);

/// Commands of submissions to a ring.
pub(crate) mod uring {
    /// Registers an entry of a queue with the kernel, which completes it with a request.
    pub(crate) const REGISTER: u32 = 1;
    /// Commits a reply, and fetches the next request in the same entry.
    pub(crate) const COMMIT_AND_FETCH: u32 = 2;
}

/// The opcodes of requests.
pub(crate) mod opcode {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const SETXATTR: u32 = 21;
    pub(crate) const GETXATTR: u32 = 22;
    pub(crate) const LISTXATTR: u32 = 23;
    pub(crate) const REMOVEXATTR: u32 = 24;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const FSYNCDIR: u32 = 30;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const IOCTL: u32 = 39;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const READDIRPLUS: u32 = 44;
    pub(crate) const RENAME2: u32 = 45;
    pub(crate) const LSEEK: u32 = 46;
    pub(crate) const COPY_FILE_RANGE: u32 = 47;
    pub(crate) const SYNCFS: u32 = 50;
    pub(crate) const TMPFILE: u32 = 51;
    pub(crate) const STATX: u32 = 52;
    pub(crate) const COPY_FILE_RANGE_64: u32 = 53;
}

/// Flags of `INIT`. From bit 32 on they are sent as `flags2`.
pub(crate) mod init {
    pub(crate) const ASYNC_READ: u64 = 1;
    pub(crate) const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub(crate) const EXPORT_SUPPORT: u64 = 1 << 4;
    pub(crate) const BIG_WRITES: u64 = 1 << 5;
    pub(crate) const DONT_MASK: u64 = 1 << 6;
    pub(crate) const HAS_IOCTL_DIR: u64 = 1 << 11;
    pub(crate) const DO_READDIRPLUS: u64 = 1 << 13;
    pub(crate) const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub(crate) const ASYNC_DIO: u64 = 1 << 15;
    pub(crate) const WRITEBACK_CACHE: u64 = 1 << 16;
    pub(crate) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(crate) const POSIX_ACL: u64 = 1 << 20;
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    pub(crate) const CACHE_SYMLINKS: u64 = 1 << 23;
    pub(crate) const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub(crate) const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub(crate) const SETXATTR_EXT: u64 = 1 << 29;
    pub(crate) const INIT_EXT: u64 = 1 << 30;
    pub(crate) const OVER_IO_URING: u64 = 1 << 41;
}

/// The valid fields of [`SetattrIn`].
pub(crate) mod fattr {
    pub(crate) const MODE: u32 = 1;
    pub(crate) const UID: u32 = 1 << 1;
    pub(crate) const GID: u32 = 1 << 2;
    pub(crate) const SIZE: u32 = 1 << 3;
    pub(crate) const ATIME: u32 = 1 << 4;
    pub(crate) const MTIME: u32 = 1 << 5;
    pub(crate) const FH: u32 = 1 << 6;
    pub(crate) const ATIME_NOW: u32 = 1 << 7;
    pub(crate) const MTIME_NOW: u32 = 1 << 8;
    pub(crate) const CTIME: u32 = 1 << 10;
    pub(crate) const KILL_SUIDGID: u32 = 1 << 11;
}

/// Flags of replies to `OPEN` and `OPENDIR`.
pub(crate) mod fopen {
    pub(crate) const DIRECT_IO: u32 = 1;
    pub(crate) const KEEP_CACHE: u32 = 1 << 1;
    #[cfg(feature = "null")]
    pub(crate) const CACHE_DIR: u32 = 1 << 3;
}

/// `WRITE`: write-back of cached pages, not by a particular user.
pub(crate) const WRITE_CACHE: u32 = 1;
/// `WRITE`: clear set-id bits.
pub(crate) const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// `OPEN` with `O_TRUNC`: clear set-id bits.
pub(crate) const OPEN_KILL_SUIDGID: u32 = 1;
/// `FSYNC`: data only.
pub(crate) const FSYNC_FDATASYNC: u32 = 1;
/// `SETXATTR` of an access control list: clear the set-group bit.
pub(crate) const SETXATTR_ACL_KILL_SGID: u32 = 1;
