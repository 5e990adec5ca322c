//! **Purpose.** Attributes of inodes: GETATTR, SETATTR, STATX, STATFS, and the replies of lookups.

use fourscore::{AttributeChange, FileType, Fs, InodeNr, Noted, NotedTimes, OpenInode, Stat};
use fourscore_ondisk::Timestamp;
use fourscore_ondisk::inode::{DeviceNr, InodeFlags};

use super::{Call, Server, VALID_SECS};
use crate::abi::{Attr, AttrOut, EntryOut, SetattrIn, StatfsOut, StatxIn, StatxOut, SxTime, fattr};
use crate::nodes::Nodes;
use crate::reply::{Errno, Reply};

/// Masks of statx(2): the attributes of stat(2), and the birth time.
const STATX_BASIC_STATS: u32 = 0x7ff;
const STATX_BTIME: u32 = 0x800;

const STATX_ATTR_COMPRESSED: u64 = 0x4;
const STATX_ATTR_IMMUTABLE: u64 = 0x10;
const STATX_ATTR_APPEND: u64 = 0x20;
const STATX_ATTR_NODUMP: u64 = 0x40;
const STATX_ATTR_ENCRYPTED: u64 = 0x800;
const STATX_ATTR_VERITY: u64 = 0x10_0000;

/// Flags of an inode that statx(2) reports. Linux 6.18 ignores them in the reply: beside the
/// attributes of stat(2) it uses only the birth time.
const STATX_FLAGS: [(InodeFlags, u64); 6] = [
    (InodeFlags::COMPR_FL, STATX_ATTR_COMPRESSED),
    (InodeFlags::IMMUTABLE_FL, STATX_ATTR_IMMUTABLE),
    (InodeFlags::APPEND_FL, STATX_ATTR_APPEND),
    (InodeFlags::NODUMP_FL, STATX_ATTR_NODUMP),
    (InodeFlags::ENCRYPT_FL, STATX_ATTR_ENCRYPTED),
    (InodeFlags::VERITY_FL, STATX_ATTR_VERITY),
];

/// A device number in the form of `stat`: 12 bits for the driver, 20 for its device.
fn encoded(device: DeviceNr) -> u32 {
    (device.minor & 0xff) | (device.major << 8) | ((device.minor & !0xff) << 12)
}

/// The opposite of [`encoded`].
pub(super) fn decoded(number: u32) -> DeviceNr {
    DeviceNr {
        major: (number >> 8) & 0xfff,
        minor: (number & 0xff) | ((number >> 12) & 0xf_ff00),
    }
}

/// The blocks of 512 bytes that a file uses. Inline data counts as well, so that programs do not
/// take the file for a hole.
fn sectors(stat: &Stat) -> u64 {
    let is_inside =
        stat.file_type == FileType::Regular && stat.flags.contains(InodeFlags::INLINE_DATA_FL);
    let inside = if is_inside {
        stat.size_bytes.div_ceil(512)
    } else {
        0
    };
    stat.sectors.saturating_add(inside)
}

impl<'f> Server<'f> {
    fn block_bytes(&self) -> u32 {
        // At most 64 KiB.
        u32::try_from(self.fs.geometry().block_size().bytes()).unwrap_or(u32::MAX)
    }

    fn attr(&self, stat: &Stat) -> Attr {
        Attr {
            ino: stat.inode.0.into(),
            size: stat.size_bytes,
            blocks: sectors(stat),
            atime: stat.atime.seconds().cast_unsigned(),
            mtime: stat.mtime.seconds().cast_unsigned(),
            ctime: stat.ctime.seconds().cast_unsigned(),
            atimensec: stat.atime.nanoseconds(),
            mtimensec: stat.mtime.nanoseconds(),
            ctimensec: stat.ctime.nanoseconds(),
            mode: stat.mode.0.into(),
            nlink: stat.links.into(),
            uid: stat.uid,
            gid: stat.gid,
            rdev: stat.device.map_or(0, encoded),
            blksize: self.block_bytes(),
            flags: 0,
        }
    }

    /// The entry of an inode that was looked up; increments its lookup count. The name is valid for
    /// `name_valid_secs`.
    pub(super) fn entry(
        &self,
        inode: InodeNr,
        name_valid_secs: u64,
        reply: &mut Reply,
    ) -> Result<EntryOut, Errno> {
        self.nodes.count_lookup(inode)?;
        reply.lookups.push(inode);
        self.counted_entry(inode, name_valid_secs)
    }

    /// As [`Server::entry`], for an inode that this request has created and that is open.
    pub(super) fn entry_of_new(
        &self,
        open: OpenInode<&'f Fs>,
        name_valid_secs: u64,
        reply: &mut Reply,
    ) -> Result<EntryOut, Errno> {
        let inode = open.inode();
        self.nodes.enter(open);
        reply.lookups.push(inode);
        self.counted_entry(inode, name_valid_secs)
    }

    fn counted_entry(&self, inode: InodeNr, name_valid_secs: u64) -> Result<EntryOut, Errno> {
        let stat = self.fs.stat(inode)?;
        Ok(EntryOut {
            nodeid: Nodes::node(inode),
            generation: self.nodes.generation(inode, stat.generation).into(),
            entry_valid: name_valid_secs,
            attr_valid: VALID_SECS,
            attr: self.attr(&stat),
            ..EntryOut::default()
        })
    }

    pub(super) fn getattr(&self, call: &Call<'_>, reply: &mut Reply) -> Result<(), Errno> {
        let stat = self.fs.stat(call.inode)?;
        reply.push(&AttrOut {
            attr_valid: VALID_SECS,
            attr: self.attr(&stat),
            ..AttrOut::default()
        })
    }

    pub(super) fn setattr(&self, mut call: Call<'_>, reply: &mut Reply) -> Result<(), Errno> {
        let wanted: SetattrIn = call.arguments.take()?;
        let has = |field: u32| wanted.valid & field != 0;
        if has(fattr::SIZE) {
            let writer = match has(fattr::KILL_SUIDGID) {
                true => Self::without_set_id(&call.header),
                false => fourscore::Caller::ROOT,
            };
            self.cut(call.inode, wanted.size, &writer)?;
        }
        self.change_attributes(&call, &wanted)?;
        self.getattr(&call, reply)
    }

    fn change_attributes(&self, call: &Call<'_>, wanted: &SetattrIn) -> Result<(), Errno> {
        let has = |field: u32| wanted.valid & field != 0;
        let time = |field, now, seconds: u64, nanoseconds| match (has(field), has(now)) {
            (false, _) => Ok(None),
            (true, true) => Ok(Some(now_of_host())),
            (true, false) => Timestamp::new(seconds.cast_signed(), nanoseconds)
                .map(Some)
                .ok_or(Errno::INVAL),
        };
        let (atime, atime_now) = (fattr::ATIME, fattr::ATIME_NOW);
        let atime = time(atime, atime_now, wanted.atime, wanted.atimensec)?;
        let (mtime, mtime_now) = (fattr::MTIME, fattr::MTIME_NOW);
        let mtime = time(mtime, mtime_now, wanted.mtime, wanted.mtimensec)?;
        if let Some(why) = kernel_time_update(wanted) {
            let ctime = time(fattr::CTIME, 0, wanted.ctime, wanted.ctimensec)?;
            let times = NotedTimes {
                atime,
                mtime,
                ctime: ctime.filter(|_| why == Noted::Written),
            };
            return Ok(self.fs.note_times(call.inode, &times, why)?);
        }
        let permissions = || u16::try_from(wanted.mode & 0o7777).unwrap_or_default();
        let mut change = AttributeChange {
            permissions: has(fattr::MODE).then(permissions),
            uid: has(fattr::UID).then_some(wanted.uid),
            gid: has(fattr::GID).then_some(wanted.gid),
            atime,
            mtime,
        };
        let fields = fattr::MODE | fattr::UID | fattr::GID | fattr::ATIME | fattr::MTIME;
        match has(fields) {
            true => {}
            false if has(fattr::SIZE) || !has(fattr::CTIME) => return Ok(()),
            // A chown(2) that changes neither owner nor group still clears set-id bits, if the
            // caller may do that. Without the writeback cache it looks like this too.
            false => {
                let owner = self.fs.stat(call.inode)?.uid;
                let may_take = [0, owner].contains(&call.header.uid);
                change.uid = may_take.then_some(owner);
            }
        }
        Ok(self.fs.set_attributes(call.inode, &change)?)
    }

    pub(super) fn statx(&self, mut call: Call<'_>, reply: &mut Reply) -> Result<(), Errno> {
        let _: StatxIn = call.arguments.take()?;
        let stat = self.fs.stat(call.inode)?;
        let time = |time: Timestamp| SxTime {
            tv_sec: time.seconds(),
            tv_nsec: time.nanoseconds(),
            reserved: 0,
        };
        let flags = STATX_FLAGS.into_iter();
        let attributes = flags
            .clone()
            .filter(|(flag, _)| stat.flags.contains(*flag))
            .fold(0, |all, (_, attribute)| all | attribute);
        let btime = stat.crtime.map_or(0, |_| STATX_BTIME);
        reply.push(&StatxOut {
            attr_valid: VALID_SECS,
            mask: STATX_BASIC_STATS | btime,
            blksize: self.block_bytes(),
            attributes,
            nlink: stat.links.into(),
            uid: stat.uid,
            gid: stat.gid,
            mode: stat.mode.0,
            ino: stat.inode.0.into(),
            size: stat.size_bytes,
            blocks: sectors(&stat),
            attributes_mask: flags.fold(0, |all, (_, attribute)| all | attribute),
            atime: time(stat.atime),
            btime: stat.crtime.map_or(SxTime::default(), time),
            ctime: time(stat.ctime),
            mtime: time(stat.mtime),
            rdev_major: stat.device.map_or(0, |device| device.major),
            rdev_minor: stat.device.map_or(0, |device| device.minor),
            ..StatxOut::default()
        })
    }

    pub(super) fn statfs(&self, node: u64, reply: &mut Reply) -> Result<(), Errno> {
        let stat = match self.nodes.inode(node) {
            Ok(inode) => self.fs.statfs_at(inode)?,
            Err(_) => self.fs.statfs()?,
        };
        reply.push(&StatfsOut {
            blocks: stat.blocks,
            bfree: stat.free_blocks,
            bavail: stat.available_blocks,
            files: stat.inodes.into(),
            ffree: stat.free_inodes.into(),
            bsize: self.block_bytes(),
            namelen: u32::try_from(stat.max_name_bytes).unwrap_or(u32::MAX),
            frsize: self.block_bytes(),
            ..StatfsOut::default()
        })
    }
}

/// The reason why the kernel sets times by itself; `None` if a program has set them.
fn kernel_time_update(wanted: &SetattrIn) -> Option<Noted> {
    let valid = wanted.valid;
    let others = fattr::MODE | fattr::UID | fattr::GID | fattr::SIZE;
    if valid & others != 0 || valid & fattr::MTIME == 0 {
        return None;
    }
    // For times of cached writes the kernel passes a file handle that is open for writing.
    if valid & fattr::ATIME == 0 {
        return (valid & fattr::FH != 0).then_some(Noted::Written);
    }
    // With the writeback cache the kernel owns the times of files, and sends the current time as a
    // value. A time that a program gives looks the same, except that it is not the time of change.
    let is_ctime = valid & fattr::CTIME != 0
        && (wanted.mtime, wanted.mtimensec) == (wanted.ctime, wanted.ctimensec);
    let is_now = valid & fattr::MTIME_NOW != 0 || is_ctime;
    (is_now && valid & fattr::ATIME_NOW != 0).then_some(Noted::Touched)
}

/// The host's time as of the last clock tick: the library and the kernel use the same clock, so
/// that a later change never gets an earlier timestamp.
fn now_of_host() -> Timestamp {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    let nanoseconds = u32::try_from(now.tv_nsec).unwrap_or_default();
    Timestamp::new(now.tv_sec, nanoseconds).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive() {
        for (major, minor) in [(0, 0), (8, 1), (0xfff, 0xf_ffff), (259, 0x1_2345)] {
            let device = DeviceNr { major, minor };
            assert_eq!(decoded(encoded(device)), device);
        }
        assert_eq!(encoded(DeviceNr { major: 8, minor: 1 }), 0x801);
    }
}
