//! **Purpose.** ext4's ioctls: flags (chattr), projects, generations, the label, FITRIM, and
//! growing.
//!
//! **Model.** All permissions are checked here. From 5.13 on Linux checks those for flags and
//! projects too, by capabilities. Older kernels pass these ioctls on from anyone, and no kernel
//! knows the flags that only ext4 has. Only root has capabilities here.
//!
//! **Locking.** Checks and changes of flags and generations happen under one lock of the server
//! (`ioctl_changes`), which is held while the library is called. So no flag that root sets between
//! a user's check and change is lost.
//!
//! **References.** `linux/fs.h`; ioctl_iflags(2).

use fourscore::Trim;
use fourscore_ondisk::BlockCount;
use fourscore_ondisk::checksum::InodeGeneration;
use fourscore_ondisk::inode::InodeFlags;
use fourscore_resize::{ResizeError, grow_mounted};

use super::{Call, Server};
use crate::abi::{FstrimRange, Fsxattr, IoctlIn, IoctlOut};
use crate::reply::{Errno, Reply};

const FS_IOC_GETFLAGS: u32 = 0x8008_6601;
const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;
const FS_IOC_FSSETXATTR: u32 = 0x401c_5820;
const FS_IOC_GETVERSION: u32 = 0x8008_7601;
const FS_IOC_SETVERSION: u32 = 0x4008_7602;
const EXT4_IOC_GETVERSION: u32 = 0x8008_6603;
const EXT4_IOC_SETVERSION: u32 = 0x4008_6604;
const FS_IOC_GETFSLABEL: u32 = 0x8100_9431;
const FS_IOC_SETFSLABEL: u32 = 0x4100_9432;
const FITRIM: u32 = 0xc018_5879;
const EXT4_IOC_RESIZE_FS: u32 = 0x4008_6610;

/// The length of a label with its terminating zero, in bytes.
const LABEL_BYTES: usize = 256;

/// Flags of `FS_IOC_FSGETXATTR`, and those of ext4 that they stand for.
const XFLAGS: [(u32, InodeFlags); 7] = [
    (0x8, InodeFlags::IMMUTABLE_FL),
    (0x10, InodeFlags::APPEND_FL),
    (0x20, InodeFlags::SYNC_FL),
    (0x40, InodeFlags::NOATIME_FL),
    (0x80, InodeFlags::NODUMP_FL),
    (0x200, InodeFlags::PROJINHERIT_FL),
    (0x8000, InodeFlags::DAX_FL),
];

/// What an ioctl changes and does not make durable itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Changes {
    Nothing,
    Inode,
    Superblock,
}

pub(super) fn changes(cmd: u32) -> Changes {
    match cmd {
        FS_IOC_SETFLAGS | FS_IOC_FSSETXATTR | FS_IOC_SETVERSION | EXT4_IOC_SETVERSION => {
            Changes::Inode
        }
        FS_IOC_SETFSLABEL => Changes::Superblock,
        _ => Changes::Nothing,
    }
}

impl Server<'_> {
    pub(super) fn ioctl(&self, mut call: Call<'_>, reply: &mut Reply) -> Result<(), Errno> {
        let wanted: IoctlIn = call.arguments.take()?;
        let inode = call.inode;
        reply.push(&IoctlOut::default())?;
        match wanted.cmd {
            FS_IOC_GETFLAGS => {
                let flags = self.fs.stat(inode)?.flags & InodeFlags::USER_VISIBLE;
                reply.push(&flags.bits())
            }
            FS_IOC_SETFLAGS => self.set_flags(&mut call),
            FS_IOC_FSGETXATTR => {
                let stat = self.fs.stat(inode)?;
                let set = XFLAGS.iter().filter(|(_, flag)| stat.flags.contains(*flag));
                reply.push(&Fsxattr {
                    xflags: set.fold(0, |all, (xflag, _)| all | xflag),
                    projid: stat.project_id,
                    ..Fsxattr::default()
                })
            }
            FS_IOC_FSSETXATTR => self.set_fsxattr(&mut call),
            FS_IOC_GETVERSION | EXT4_IOC_GETVERSION => reply.push(&self.fs.stat(inode)?.generation),
            FS_IOC_SETVERSION | EXT4_IOC_SETVERSION => self.set_generation(&mut call),
            FS_IOC_GETFSLABEL => {
                let mut label = [0; LABEL_BYTES];
                let name = self.fs.label()?;
                let shown = label.iter_mut().zip(name);
                shown.for_each(|(to, from)| *to = from);
                reply.push(&label)
            }
            FS_IOC_SETFSLABEL => self.set_label(&mut call),
            FITRIM => self.trim(&mut call, reply),
            EXT4_IOC_RESIZE_FS => self.resize(&mut call),
            _ => Err(Errno::NOTTY),
        }
    }

    fn set_flags(&self, call: &mut Call<'_>) -> Result<(), Errno> {
        let flags = InodeFlags::from_bits_retain(call.arguments.take::<u32>()?);
        let _alone = self.ioctl_changes.lock();
        self.check_flags(call, flags)?;
        self.fs.set_flags(call.inode, flags)?;
        self.invalidate_attributes(call.inode);
        Ok(())
    }

    /// Checks that the caller owns the inode, and may change those flags that differ.
    fn check_flags(&self, call: &Call<'_>, flags: InodeFlags) -> Result<(), Errno> {
        let caller = Self::unchecked_caller(&call.header);
        Ok(self.fs.check_flags_change(call.inode, flags, &caller)?)
    }

    fn set_generation(&self, call: &mut Call<'_>) -> Result<(), Errno> {
        let generation = InodeGeneration(call.arguments.take()?);
        let _alone = self.ioctl_changes.lock();
        let before = self.fs.stat(call.inode)?;
        if call.header.uid != 0 && call.header.uid != before.uid {
            return Err(Errno::PERM);
        }
        // Before the change, so that no reply reports the new one.
        self.nodes.keep_generation(call.inode, before.generation);
        match self.fs.set_generation(call.inode, generation) {
            Err(fourscore::Error::Unsupported(_)) => return Err(Errno::NOTTY),
            done => done?,
        }
        self.invalidate_attributes(call.inode);
        Ok(())
    }

    fn set_fsxattr(&self, call: &mut Call<'_>) -> Result<(), Errno> {
        /// No project: Linux has this number where none is valid.
        const NO_PROJECT: u32 = u32::MAX;
        let wanted: Fsxattr = call.arguments.take()?;
        let known = XFLAGS.iter().fold(0, |all, (xflag, _)| all | xflag);
        if wanted.xflags & !known != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let _alone = self.ioctl_changes.lock();
        let stat = self.fs.stat(call.inode)?;
        let mut flags = stat.flags;
        for (xflag, flag) in XFLAGS {
            flags.set(flag, wanted.xflags & xflag != 0);
        }
        self.check_flags(call, flags)?;
        if wanted.projid != stat.project_id && wanted.projid == NO_PROJECT {
            return Err(Errno::INVAL);
        }
        if flags != stat.flags {
            self.fs
                .set_flags(call.inode, flags & InodeFlags::USER_VISIBLE)?;
        }
        // As in Linux, the owner may choose any project.
        if wanted.projid != stat.project_id {
            self.fs.set_project(call.inode, wanted.projid)?;
        }
        self.invalidate_attributes(call.inode);
        Ok(())
    }

    fn set_label(&self, call: &mut Call<'_>) -> Result<(), Errno> {
        let label: [u8; LABEL_BYTES] = call.arguments.take()?;
        if call.header.uid != 0 {
            return Err(Errno::PERM);
        }
        let name = label.split(|&byte| byte == 0).next();
        Ok(self.fs.set_label(name.unwrap_or_default())?)
    }

    /// Grows within the device. As in Linux this does not make an image file longer;
    /// `fourscore resize` does.
    fn resize(&self, call: &mut Call<'_>) -> Result<(), Errno> {
        let blocks = BlockCount(call.arguments.take()?);
        if call.header.uid != 0 {
            return Err(Errno::PERM);
        }
        let now = self.fs.geometry().blocks();
        let has_bytes = self.fs.device().lengthen(0);
        let has_bytes = has_bytes.map_err(fourscore::Error::from)?;
        let block_size = self.fs.geometry().block_size();
        if blocks < now || blocks.0 > has_bytes >> block_size.bits() {
            return Err(Errno::INVAL);
        }
        match grow_mounted(self.fs, blocks) {
            Ok(_) => Ok(()),
            Err(ResizeError::Fs(error)) => Err(error.into()),
            Err(ResizeError::Io(error)) => Err(fourscore::Error::from(error).into()),
            Err(ResizeError::Corrupt(error)) => {
                tracing::warn!(%error, "the file system did not grow");
                Err(Errno::UCLEAN)
            }
            Err(error) => {
                tracing::info!(%error, "the file system did not grow");
                Err(Errno::INVAL)
            }
        }
    }

    fn trim(&self, call: &mut Call<'_>, reply: &mut Reply) -> Result<(), Errno> {
        let wanted: FstrimRange = call.arguments.take()?;
        if call.header.uid != 0 {
            return Err(Errno::PERM);
        }
        let trimmed_bytes = self.fs.trim(&Trim {
            start_bytes: wanted.start,
            len_bytes: wanted.len,
            least_bytes: wanted.minlen,
        })?;
        reply.push(&FstrimRange {
            len: trimmed_bytes,
            ..wanted
        })
    }
}
