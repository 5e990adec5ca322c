//! **Purpose.** Patches of the fields of inodes: each clears or sets what its finding names, and
//! keeps the rest. Only what cannot be a file is cleared.
//!
//! **Not here.** Maps (`map`), counts (`counts`), attributes (`attributes`).

use fourscore_ondisk::features::{Compat, Incompat, RoCompat};
use fourscore_ondisk::inline::InlineData;
use fourscore_ondisk::inode::{
    FileMode, FileType, GOOD_OLD_INODE_SIZE_BYTES, InodeFlags, RawInode, RawInodeExtra,
};
use fourscore_ondisk::xattr::{self, Xattrs};
use fourscore_ondisk::{InodeNr, LogicalBlock, PhysBlock, extent, orphan};
use zerocopy::FromBytes;

use super::editor::{Editor, Left, Patch};
use crate::inode::InodeView;

/// The magic number in front of attributes inside an inode.
const XATTR_MAGIC: [u8; 4] = 0xea02_0000_u32.to_le_bytes();
const BOOT_LOADER: InodeNr = InodeNr(5);

impl Editor<'_> {
    /// Sets the time of deletion of an inode without names, or clears that of another one.
    pub(super) fn mend_dtime(&self, nr: InodeNr) -> Patch {
        let now = self.now;
        self.edit_base(nr, |base| {
            let deleted = base.i_links_count.get() == 0;
            base.i_dtime = if deleted { now } else { 0 }.into();
        })
    }

    /// Gives a directory back its type, if its first block says that it is one; else makes it a
    /// free inode.
    pub(super) fn type_or_clear(&self, nr: InodeNr) -> Patch {
        if self.looks_like_directory(nr) {
            return self.edit_base(nr, |base| {
                let permissions = base.i_mode.get() & 0o7777;
                base.i_mode = FileMode::new(FileType::Directory, permissions).0.into();
            });
        }
        self.clear_inode(nr)
    }

    /// Whether the first block of an inode begins with a `.` that refers to it, whatever its type
    /// is.
    fn looks_like_directory(&self, nr: InodeNr) -> bool {
        let Ok(mut bytes) = self.inode_bytes(nr) else {
            return false;
        };
        if let Ok((base, _)) = RawInode::mut_from_prefix(&mut bytes) {
            base.i_mode = FileMode::new(FileType::Directory, 0).0.into();
        }
        let Some(view) = InodeView::new(&bytes, nr) else {
            return false;
        };
        let places = crate::pass1::orphans::places_in(self.volume, &view);
        let first = places.runs.first().filter(|(logical, _)| *logical == 0);
        let block = first.and_then(|(_, run)| self.read_block(run.start).ok());
        let is_dot = |block: &Vec<u8>| {
            block.starts_with(&nr.0.to_le_bytes())
                && block
                    .get(6..10)
                    .is_some_and(|rest| rest[0] == 1 && &rest[2..] == b".\0")
        };
        block.is_some_and(|block| is_dot(&block))
    }

    /// Sets the type of a reserved inode to that of its role.
    pub(super) fn mend_reserved_mode(&self, nr: InodeNr) -> Patch {
        let is_file = nr == BOOT_LOADER
            || nr == crate::walk::RESIZE_INODE
            || nr == InodeNr::JOURNAL
            || self.volume.sb.is_hidden(nr);
        self.edit_base(nr, |base| {
            let mode = FileMode::new(FileType::Regular, 0o600).0;
            base.i_mode = if is_file { mode } else { 0 }.into();
        })
    }

    /// Clears everything of the inode of bad blocks but its blocks.
    pub(super) fn mend_bad_blocks_inode(&self, nr: InodeNr) -> Patch {
        self.edit_base(nr, |base| {
            base.i_mode = 0.into();
            base.i_uid = 0.into();
            base.i_uid_high = 0.into();
            base.i_gid = 0.into();
            base.i_gid_high = 0.into();
            base.i_links_count = 0.into();
            base.i_file_acl_lo = 0.into();
            base.i_file_acl_high = 0.into();
            let flags = base.i_flags.get() & !InodeFlags::INLINE_DATA_FL.bits();
            base.i_flags = flags.into();
        })
    }

    /// Sets the size; that of a special file is 0.
    pub(super) fn set_size(&self, nr: InodeNr, size: u64) -> Patch {
        let [a, b, c, d, e, f, g, h] = size.to_le_bytes();
        self.edit_base(nr, |base| {
            base.i_size_lo = u32::from_le_bytes([a, b, c, d]).into();
            base.i_size_high = u32::from_le_bytes([e, f, g, h]).into();
        })
    }

    /// Sets a field that must be zero to 0.
    pub(super) fn clear_field(&self, nr: InodeNr, field: &str) -> Patch {
        self.edit_base(nr, |base| match field {
            "i_obso_faddr" => base.i_obso_faddr = 0.into(),
            "i_size_high" => base.i_size_high = 0.into(),
            "i_file_acl_high" => base.i_file_acl_high = 0.into(),
            "i_blocks_high" => base.i_blocks_high = 0.into(),
            _ => {}
        })
    }

    /// Mends a flag that contradicts the features or another flag. If the inode is what the flag
    /// says, the other side is wrong.
    pub(super) fn mend_flag(&self, nr: InodeNr, flag: &str, why: &str) -> Patch {
        let inode = self.inode_bytes(nr)?;
        let view = InodeView::new(&inode, nr).ok_or_else(|| Left::because("too short"))?;
        let is_tree = {
            let whole = PhysBlock(0)..PhysBlock(u64::MAX);
            extent::check_root(&view.base.i_block, &whole).is_ok()
        };
        let xattrs = Xattrs::in_inode(view.xattr_area().unwrap_or(&[]));
        let is_inline = InlineData::find(&view.base.i_block, &xattrs).is_ok();
        let wrong = match (flag, why) {
            ("EXTENTS_FL", "not set, but i_block holds an extent tree") => {
                return self.edit_base(nr, |base| {
                    let flags = base.i_flags.get() | InodeFlags::EXTENTS_FL.bits();
                    base.i_flags = flags.into();
                });
            }
            ("EXTENTS_FL", "without the feature extent") if is_tree => {
                return self.set_incompat(Incompat::EXTENTS);
            }
            ("INLINE_DATA_FL", "without the feature inline_data") if is_inline => {
                return self.set_incompat(Incompat::INLINE_DATA);
            }
            ("INLINE_DATA_FL", "together with EXTENTS_FL") if !is_tree => InodeFlags::EXTENTS_FL,
            ("INDEX_FL", "without the feature dir_index") => InodeFlags::INDEX_FL,
            ("INLINE_DATA_FL", _) => InodeFlags::INLINE_DATA_FL,
            ("EXTENTS_FL", _) => InodeFlags::EXTENTS_FL,
            ("CASEFOLD_FL", _) => InodeFlags::CASEFOLD_FL,
            ("IMAGIC_FL", _) => InodeFlags::IMAGIC_FL,
            ("INDEX_FL", _) => InodeFlags::INDEX_FL,
            ("EA_INODE_FL", _) => InodeFlags::EA_INODE_FL,
            _ => return Err(Left(format!("no rule for {flag}"))),
        };
        self.clear_flags(nr, wrong)
    }

    pub(super) fn set_incompat(&self, feature: Incompat) -> Patch {
        self.edit_super(|raw| {
            raw.s_feature_incompat = (raw.s_feature_incompat.get() | feature.bits()).into();
        })
    }

    pub(super) fn set_compat(&self, feature: Compat) -> Patch {
        self.edit_super(|raw| {
            raw.s_feature_compat = (raw.s_feature_compat.get() | feature.bits()).into();
        })
    }

    pub(super) fn set_ro_compat(&self, feature: RoCompat) -> Patch {
        self.edit_super(|raw| {
            raw.s_feature_ro_compat = (raw.s_feature_ro_compat.get() | feature.bits()).into();
        })
    }

    /// Clears the flags of a device, pipe or socket that imply data.
    pub(super) fn mend_special(&self, nr: InodeNr) -> Patch {
        let implied = InodeFlags::EXTENTS_FL
            | InodeFlags::INLINE_DATA_FL
            | InodeFlags::INDEX_FL
            | InodeFlags::IMMUTABLE_FL
            | InodeFlags::APPEND_FL;
        self.clear_flags(nr, implied)
    }

    /// Sets the size of the extra fields to one behind which the attributes of the inode begin;
    /// without attributes to the size that new inodes get.
    pub(super) fn mend_extra_isize(&self, nr: InodeNr) -> Patch {
        let most = self.volume.geometry().inode_size_bytes() - GOOD_OLD_INODE_SIZE_BYTES;
        let wanted = usize::from(inode_extra(&self.volume.sb)).min(most);
        let ea_inodes = self.volume.ea_inodes();
        self.edit_inode(nr, |bytes| {
            let sizes = std::iter::once(wanted).chain((4..=most).step_by(4));
            let mut begins = sizes.filter(|&size| {
                let area = bytes.get(GOOD_OLD_INODE_SIZE_BYTES + size..).unwrap_or(&[]);
                area.starts_with(&XATTR_MAGIC) && xattr::check_in_inode(area, ea_inodes).is_ok()
            });
            let found = begins.next();
            let size = found.unwrap_or(wanted);
            if found.is_none()
                && let Some(area) = bytes.get_mut(GOOD_OLD_INODE_SIZE_BYTES + size..)
            {
                area.fill(0);
            }
            let field = u16::try_from(size).unwrap_or(0).to_le_bytes();
            if let Some(place) = bytes.get_mut(GOOD_OLD_INODE_SIZE_BYTES..)
                && let Some(place) = place.get_mut(..2)
            {
                place.copy_from_slice(&field);
            }
        })
    }

    /// Clears the bits of a time that make one before 1970 one beyond 2310.
    pub(super) fn mend_time(&self, nr: InodeNr, field: &str) -> Patch {
        self.edit_inode(nr, |bytes| {
            let tail = bytes
                .get_mut(GOOD_OLD_INODE_SIZE_BYTES..)
                .unwrap_or(&mut []);
            let Ok((extra, _)) = RawInodeExtra::mut_from_prefix(tail) else {
                return;
            };
            let word = match field {
                "i_atime" => &mut extra.i_atime_extra,
                "i_ctime" => &mut extra.i_ctime_extra,
                "i_crtime" => &mut extra.i_crtime_extra,
                _ => &mut extra.i_mtime_extra,
            };
            *word = (word.get() & !3).into();
        })
    }

    /// Mends a link whose target is inside the inode by giving it the length of the target; clears
    /// any other.
    pub(super) fn mend_symlink(&self, nr: InodeNr) -> Patch {
        let length = self.with_inode(nr, |inode| {
            let target = &inode.base.i_block;
            let length = target
                .iter()
                .position(|&byte| byte == 0)
                .unwrap_or(target.len());
            let sectors = inode.counted_blocks(&self.volume.sb);
            let plain = InodeFlags::ENCRYPT_FL
                | InodeFlags::INLINE_DATA_FL
                | InodeFlags::EXTENTS_FL
                | InodeFlags::INDEX_FL;
            let is_short = !inode.flags().intersects(plain) && sectors == 0;
            let printable = |bytes: &[u8]| bytes.iter().all(|byte| *byte >= b' ');
            let fits = (1..target.len()).contains(&length) && printable(&target[..length]);
            (is_short && fits).then_some(length)
        })?;
        match length {
            Some(length) => self.set_size(nr, length as u64),
            None => self.clear_inode(nr),
        }
    }

    /// Empties a file whose content inside the inode is lost; a directory becomes a free inode.
    pub(super) fn cut_inline(&self, nr: InodeNr) -> Patch {
        if self.with_inode(nr, |inode| inode.is_directory())? {
            return self.clear_inode(nr);
        }
        let extents = self.volume.incompat(Incompat::EXTENTS);
        self.edit_base(nr, |base| {
            let mut flags = base.i_flags.get() & !InodeFlags::INLINE_DATA_FL.bits();
            base.i_block = [0; 60];
            if extents {
                flags |= InodeFlags::EXTENTS_FL.bits();
                extent::init_root(&mut base.i_block);
            }
            base.i_flags = flags.into();
            base.i_size_lo = 0.into();
            base.i_size_high = 0.into();
        })
    }

    /// Empties the orphan list and the orphan file.
    pub(super) fn drop_orphan_lists(&self) -> Patch {
        self.edit_super(|raw| {
            raw.s_last_orphan = 0.into();
            let features = raw.s_feature_ro_compat.get() & !RoCompat::ORPHAN_PRESENT.bits();
            raw.s_feature_ro_compat = features.into();
        })?;
        let Some(file) = self.volume.sb.orphan_file_inode() else {
            return Ok(());
        };
        let seed = self.with_inode(file, |inode| inode.seed(&self.volume.sb))?;
        for block in self.blocks_of(file)? {
            let mut bytes = vec![0; block.bytes.len()];
            orphan::seal(&mut bytes, block.place, seed, &self.volume.sb)
                .map_err(|error| Left(error.to_string()))?;
            self.write_block(block.place, &bytes)?;
        }
        Ok(())
    }

    /// Deletes an orphan, or cuts it to its size, as the next mount would.
    pub(super) fn release_orphan(&self, nr: InodeNr) -> Patch {
        let (links, size, is_special) = self.with_inode(nr, |inode| {
            (
                inode.links(),
                inode.size_bytes(),
                !crate::pass1::has_map(inode),
            )
        })?;
        if links == 0 {
            let now = self.now;
            return self.edit_base(nr, |base| {
                base.i_dtime = now.into();
                base.i_size_lo = 0.into();
                base.i_size_high = 0.into();
                base.i_blocks_lo = 0.into();
                base.i_blocks_high = 0.into();
                base.i_file_acl_lo = 0.into();
                base.i_file_acl_high = 0.into();
                base.i_block = [0; 60];
                let maps = InodeFlags::EXTENTS_FL | InodeFlags::INLINE_DATA_FL;
                base.i_flags = (base.i_flags.get() & !maps.bits()).into();
            });
        }
        self.edit_base(nr, |base| base.i_dtime = 0.into())?;
        if is_special {
            return Ok(());
        }
        let end = size.div_ceil(self.volume.block_bytes() as u64);
        let end = LogicalBlock(u32::try_from(end).unwrap_or(u32::MAX));
        let whole = LogicalBlock(0)..end;
        let extents = self.extents_of(nr)?;
        let kept: Vec<_> = extents
            .iter()
            .filter_map(|extent| extent.part(&whole))
            .collect();
        self.write_map(nr, &kept)
    }
}

/// The size of the extra fields of new inodes.
fn inode_extra(sb: &fourscore_ondisk::Superblock) -> u16 {
    let wanted = sb.want_extra_isize_bytes();
    match wanted {
        4.. if wanted.is_multiple_of(4) => wanted,
        _ => 32,
    }
}
