//! **Purpose.** The library as the file system under test.

use fourscore::{
    Error, Fallocate, Follow, Fs, InodeNr, LogicalBlock, OpenInode, Replace, Seek, SetXattr,
};
use fourscore_ondisk::BlockCount;
use fourscore_resize::{ResizeError, grow_mounted};
use fourscore_sync::Arc;
use std::ops::ControlFlow;

use super::call::{Failure, Kind, Listed, Name, Range, Space};
use super::judge::errno;
use super::shared::linked;
use super::target::{Answer, IoMode, Target};
use crate::BY_ROOT;

/// A file system opened in this process.
#[derive(Debug)]
pub(super) struct InProcess {
    pub(super) fs: Arc<Fs>,
}

fn answer<T>(result: fourscore::Result<T>) -> Answer<T> {
    result.map_err(|error| Failure {
        errno: error.errno(),
        text: format!("{error}"),
    })
}

/// The inode with a number.
fn nr(number: u64) -> InodeNr {
    InodeNr(u32::try_from(number).unwrap_or(0))
}

impl Target for InProcess {
    type Dir = InodeNr;
    type File = OpenInode;

    const HAS_PAGE_CACHE: bool = false;
    const HAS_MOVES: bool = true;

    fn root(&self) -> InodeNr {
        InodeNr::ROOT
    }

    fn number(&self, dir: &InodeNr) -> u64 {
        dir.0.into()
    }

    fn open_dir(&self, dir: &InodeNr, name: Name) -> Answer<InodeNr> {
        answer(self.fs.lookup(*dir, name.text().as_bytes()))
    }

    fn make(&self, dir: &InodeNr, name: Name, kind: Kind) -> Answer<Option<u64>> {
        let text = name.text();
        let name = text.as_bytes();
        let made = match kind {
            Kind::File => self.fs.create(*dir, name, &BY_ROOT),
            Kind::Directory => self.fs.mkdir(*dir, name, &BY_ROOT),
            Kind::Symlink => {
                let target = link_target(name);
                self.fs.symlink(*dir, name, &target, &BY_ROOT)
            }
        };
        answer(made.map(|nr| Some(nr.0.into())))
    }

    fn create(&self, dir: &InodeNr, name: Name) -> Answer<(OpenInode, u64)> {
        let fs = Arc::clone(&self.fs);
        let file = answer(OpenInode::created(
            fs,
            *dir,
            name.text().as_bytes(),
            &BY_ROOT,
        ))?;
        let number = file.inode().0.into();
        Ok((file, number))
    }

    fn unnamed(&self, dir: &InodeNr) -> Answer<OpenInode> {
        answer(OpenInode::unnamed(Arc::clone(&self.fs), *dir, &BY_ROOT))
    }

    fn link(&self, file: &OpenInode, dir: &InodeNr, name: Name) -> Answer<u64> {
        answer(self.fs.link(file.inode(), *dir, name.text().as_bytes()))?;
        Ok(file.inode().0.into())
    }

    fn file_number(&self, file: &OpenInode) -> u64 {
        file.inode().0.into()
    }

    fn unlink(&self, dir: &InodeNr, name: Name) -> Answer<()> {
        answer(self.fs.unlink(*dir, name.text().as_bytes()))
    }

    fn rmdir(&self, dir: &InodeNr, name: Name) -> Answer<()> {
        answer(self.fs.rmdir(*dir, name.text().as_bytes()))
    }

    fn rename(&self, from: (&InodeNr, Name), to: (&InodeNr, Name), replaces: bool) -> Answer<()> {
        let replace = if replaces { Replace::Yes } else { Replace::No };
        let (old, new) = (from.1.text(), to.1.text());
        let (from, to) = ((*from.0, old.as_bytes()), (*to.0, new.as_bytes()));
        answer(self.fs.rename(from, to, replace))
    }

    fn exchange(&self, one: (&InodeNr, Name), other: (&InodeNr, Name)) -> Answer<()> {
        let (old, new) = (one.1.text(), other.1.text());
        answer(
            self.fs
                .exchange((*one.0, old.as_bytes()), (*other.0, new.as_bytes())),
        )
    }

    fn lookup(&self, dir: &InodeNr, name: Name) -> Answer<u64> {
        answer(
            self.fs
                .lookup(*dir, name.text().as_bytes())
                .map(|nr| nr.0.into()),
        )
    }

    fn resolve(&self, path: &[Name]) -> Answer<u64> {
        let path: Vec<_> = path.iter().map(|name| name.text()).collect();
        let path = path.join("/");
        answer(
            self.fs
                .resolve(path.as_bytes(), Follow::Yes)
                .map(|nr| nr.0.into()),
        )
    }

    fn list(&self, dir: &InodeNr, most: Option<usize>) -> Answer<(Vec<(Name, u64)>, Listed)> {
        let mut entries = Vec::new();
        let mut listed = Listed::Whole;
        answer(self.fs.for_each_entry(*dir, |entry| {
            if most == Some(entries.len()) {
                listed = Listed::Part;
                return ControlFlow::Break(());
            }
            entries.push((Name::parse(entry.name), entry.inode.0.into()));
            ControlFlow::Continue(())
        }))?;
        Ok((entries, listed))
    }

    fn stat_number(&self, number: u64) -> Answer<()> {
        answer(self.fs.stat(nr(number)).map(drop))
    }

    fn read(&self, file: &OpenInode, bytes: &mut [u8], offset: u64, _: IoMode) -> Answer<usize> {
        answer(self.fs.read_at(file.inode(), bytes, offset))
    }

    fn write(&self, file: &OpenInode, bytes: &[u8], offset: u64, how: IoMode) -> Answer<()> {
        use fourscore::WrittenAt::Now;
        answer(match how {
            IoMode::Buffered => self.fs.write_all_at(file.inode(), bytes, offset),
            IoMode::Direct => self
                .fs
                .write_back_at(file.inode(), bytes, offset, Now)
                .map(drop),
        })
    }

    fn append(&self, file: &OpenInode, bytes: &[u8]) -> Answer<u64> {
        answer(self.fs.append(file.inode(), bytes))
    }

    fn truncate(&self, file: &OpenInode, size: u64) -> Answer<()> {
        answer(self.fs.truncate(file.inode(), size))
    }

    fn change(&self, file: &OpenInode, what: Range, offset: u64, len: u64) -> Answer<()> {
        let what = match what {
            Range::Allocate => Fallocate::Allocate,
            Range::AllocateKeepSize => Fallocate::AllocateKeepSize,
            Range::Punch => Fallocate::PunchHole,
            Range::Zero => Fallocate::ZeroRange,
            Range::ZeroKeepSize => Fallocate::ZeroRangeKeepSize,
            Range::Collapse => Fallocate::CollapseRange,
            Range::Insert => Fallocate::InsertRange,
        };
        answer(self.fs.fallocate(file.inode(), what, offset, len))
    }

    fn copy(&self, from: (&OpenInode, u64), to: (&OpenInode, u64), len: u64) -> Answer<u64> {
        let (source, target) = (from.0.inode(), to.0.inode());
        answer(self.fs.copy_file_range(source, from.1, target, to.1, len))
    }

    fn extents(&self, file: &OpenInode) -> Answer<u64> {
        let extents = answer(self.fs.extents(file.inode()))?;
        let mut behind = LogicalBlock(0);
        for extent in &extents {
            if extent.logical < behind {
                let text = format!(
                    "an extent begins at block {} before the end {behind:?} of the previous one",
                    extent.logical.0
                );
                return Err(Failure { errno: 0, text });
            }
            behind = LogicalBlock(extent.logical.0 + extent.blocks);
        }
        Ok(extents.len() as u64)
    }

    fn seek(&self, file: &OpenInode, offset: u64, data: bool) -> Answer<Option<u64>> {
        let what = if data { Seek::Data } else { Seek::Hole };
        answer(self.fs.seek(file.inode(), offset, what))
    }

    fn size(&self, file: &OpenInode) -> Answer<u64> {
        answer(self.fs.stat(file.inode()).map(|stat| stat.size_bytes))
    }

    fn set_xattr(&self, file: &OpenInode, name: &str, value: &[u8]) -> Answer<()> {
        answer(
            self.fs
                .set_xattr(file.inode(), name.as_bytes(), value, SetXattr::Any),
        )
    }

    fn remove_xattr(&self, file: &OpenInode, name: &str) -> Answer<()> {
        answer(self.fs.remove_xattr(file.inode(), name.as_bytes()))
    }

    fn xattr(&self, file: &OpenInode, name: &str) -> Answer<Vec<u8>> {
        answer(self.fs.xattr(file.inode(), name.as_bytes()))
    }

    fn fsync(&self, file: &OpenInode) -> Answer<()> {
        answer(self.fs.fsync(file.inode()))
    }

    fn sync(&self) -> Answer<()> {
        answer(self.fs.sync())
    }

    fn stat_fs(&self) -> Answer<Space> {
        let stat = answer(self.fs.statfs())?;
        Ok(Space {
            block_bytes: stat.block_bytes as u64,
            blocks: stat.blocks,
            free_blocks: stat.free_blocks,
            available_blocks: stat.available_blocks,
            inodes: stat.inodes.into(),
            free_inodes: stat.free_inodes.into(),
        })
    }

    fn fs_blocks(&self) -> u64 {
        self.fs.geometry().blocks().0
    }

    fn grow_fs(&self, blocks: u64) -> Answer<u64> {
        match grow_mounted(&self.fs, BlockCount(blocks)) {
            Ok(blocks) => Ok(blocks.0),
            Err(ResizeError::Fs(error)) => answer(Err(error)),
            Err(ResizeError::Io(error)) => answer(Err(error.into())),
            Err(
                error @ (ResizeError::TooSmall { .. }
                | ResizeError::TooLarge { .. }
                | ResizeError::DeviceTooShort { .. }),
            ) => Err(Failure {
                errno: errno::INVAL,
                text: error.to_string(),
            }),
            Err(error) => Err(Failure {
                errno: errno::UCLEAN,
                text: error.to_string(),
            }),
        }
    }
}

/// The target of a symbolic link: the same name in all links, which always exists. Some targets are
/// so long that they need a block.
pub(super) fn link_target(name: &[u8]) -> Vec<u8> {
    let slashes = if name.ends_with(b"4") { 100 } else { 1 };
    let path = linked().map(Name::text);
    path.join(&"/".repeat(slashes)).into_bytes()
}

/// The attributes of an inode, or `None` if it is free; for the walk of the whole tree.
pub(super) fn in_use(fs: &Fs, inode: InodeNr) -> fourscore::Result<Option<fourscore::Stat>> {
    match fs.stat(inode) {
        Ok(stat) => Ok(Some(stat)),
        Err(Error::NotFound) => Ok(None),
        Err(error) => Err(error),
    }
}
