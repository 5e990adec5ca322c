//! **Purpose.** Two names that change places (`RENAME_EXCHANGE`).
//!
//! **Model.** As renaming ([`super::rename`]), but nothing goes: each name leads to what the other
//! one led to. Directories that change their parent get a new `..`.
//!
//! **Locking.** That of renaming.

use fourscore_ondisk::InodeNr;
use fourscore_sync::epoch::{self, Guard};

use super::entries::ChangedDir;
use super::flags::{check_name_may_go, check_project};
use super::names::{check_key, entry_type};
use super::plan::Plan;
use super::rename::{Renaming, Taking, Versions, check_names, found};
use super::{Writer, now};
use crate::dir::Keep;
use crate::{Error, FileType, Fs, Result};

impl Fs {
    /// Has the names `one` and `other`, which both exist, change places.
    ///
    /// # Errors
    /// As [`Fs::rename`]; `NotFound` if either is not there.
    pub fn exchange(&self, one: (InodeNr, &[u8]), other: (InodeNr, &[u8])) -> Result<()> {
        self.noting(self.settled(&[one, other], || self.exchange_names(one, other)))
    }

    fn exchange_names(&self, one: (InodeNr, &[u8]), other: (InodeNr, &[u8])) -> Result<()> {
        let writer = self.writer()?;
        check_names(one.1, other.1)?;
        loop {
            let nr = self.lookup_once(one.0, one.1)?;
            let second = self.lookup_once(other.0, other.1)?;
            if nr == second {
                return Ok(());
            }
            let names = Renaming {
                from: one,
                to: other,
                nr,
                victim: Some(second),
                whiteout: None,
            };
            if self.try_exchange(writer, &names, second)? {
                return Ok(());
            }
        }
    }

    /// Exchanges, if the names still lead where they did; `false` if not.
    fn try_exchange(&self, writer: &Writer, names: &Renaming<'_>, second: InodeNr) -> Result<bool> {
        let guard = epoch::pin();
        let is_dir =
            |nr| -> Result<bool> { Ok(self.inode(nr, &guard)?.file_type() == FileType::Directory) };
        let (first_is_dir, second_is_dir) = (is_dir(names.nr)?, is_dir(second)?);
        let moves_dirs = (first_is_dir || second_is_dir) && names.is_across();
        let _renames = moves_dirs.then(|| writer.lock_renames());
        if moves_dirs
            && (first_is_dir && self.is_below(names.to.0, names.nr)?
                || second_is_dir && self.is_below(names.from.0, second)?)
        {
            return Err(Error::InvalidArgument(
                "a directory cannot be moved below itself",
            ));
        }
        let taking = self.pin_for(names, &guard)?;
        drop(guard);
        let locked: Vec<_> = taking.0.iter().map(|(_, pinned)| pinned.lock()).collect();
        let guard = epoch::pin();
        let first_now = found(self.look_up(names.from.0, names.from.1, Keep::Nothing, &guard))?;
        let second_now = found(self.look_up(names.to.0, names.to.1, Keep::Nothing, &guard))?;
        if first_now != Some(names.nr) || second_now != Some(second) {
            return Ok(false);
        }
        let mut plan = Plan::new(self, writer);
        let versions = self.plan_exchange(&mut plan, names, second, &taking, &guard)?;
        let last: Vec<_> = locked.iter().map(|locked| &locked.last).collect();
        plan.carry_out(&last)?;
        for (nr, version) in versions {
            taking.get(nr)?.publish(Some(version));
        }
        Ok(true)
    }

    fn plan_exchange(
        &self,
        plan: &mut Plan<'_>,
        names: &Renaming<'_>,
        second: InodeNr,
        taking: &Taking,
        guard: &Guard,
    ) -> Result<Versions> {
        let dirs = [names.from.0, names.to.0];
        let inodes = [names.nr, second];
        let entries = [names.from.1, names.to.1];
        let is_dir = |nr| -> Result<bool> {
            Ok(taking.get(nr)?.version(guard)?.file_type() == FileType::Directory)
        };
        let mut versions = Vec::with_capacity(4);
        for (here, there) in [(0, 1), (1, 0)] {
            let dir = self.directory_to_change(taking.get(dirs[here])?, guard)?;
            let goes = taking.get(inodes[here])?.version(guard)?;
            let comes = taking.get(inodes[there])?.version(guard)?;
            check_key(dir)?;
            check_name_may_go(dir, goes)?;
            check_project(dir, comes)?;
            let slot = plan.slot(dirs[here])?;
            let changed = ChangedDir::new(self, dir, slot)?;
            let kind = entry_type(comes.file_type());
            plan.redirect_name(&changed, entries[here], inodes[there], kind)?;
            let mut links = 0;
            if names.is_across() {
                links = i32::from(is_dir(inodes[there])?) - i32::from(is_dir(inodes[here])?);
                if links > 0 {
                    self.check_subdirectory(dir)?;
                }
            }
            let version = self.touch_dir(plan, dir, slot, links)?;
            // Both names may be in one directory: then the later version has both changes.
            versions.retain(|(nr, _)| *nr != dirs[here]);
            versions.push((dirs[here], version));
        }
        for (here, there) in [(0, 1), (1, 0)] {
            let slot = plan.slot(inodes[here])?;
            plan.edit(slot, |inode| inode.set_ctime(now()))?;
            if names.is_across() && is_dir(inodes[here])? {
                let inode = taking.get(inodes[here])?.version(guard)?;
                let moved = ChangedDir::new(self, inode, slot)?;
                plan.set_parent(&moved, dirs[there])?;
            }
            versions.push((inodes[here], plan.version(slot)?));
        }
        Ok(versions)
    }
}
