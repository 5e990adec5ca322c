//! **Purpose.** Moves the journal, if a part of it lies behind the new end.
//!
//! **Model.** Its inode is what recovery finds the log by, so it must not change by a transaction
//! of that same log: Linux would go on with the map that it had read before. Three steps instead:
//!
//! | step | the map of the journal's inode | how |
//! |---|---|---|
//! | lengthen | the log, then the blocks it moves to | a transaction |
//! | exchange | the log at its new place, then the blocks it had | one sector is written |
//! | shorten | the log | a transaction of the log at its new place |
//!
//! A journal may be longer than its superblock says, so each is a valid file system. The log is
//! empty throughout, so of its content only the superblock matters, which is the log's first block:
//! it is copied before the exchange. The rest of the new place becomes zeroes, so that nothing that
//! lay there is ever taken for a record of the log.
//!
//! The exchange is one sector if the map lies in the inode. A map with more than four extents, and
//! one of pointers, is changed in place between two writes of the superblock, as without a journal:
//! a crash in that moment needs e2fsck, and loses nothing.

use fourscore_ondisk::extent::{self, Extent, ExtentState};
use fourscore_ondisk::inode::Inode;
use fourscore_ondisk::jbd2::{JournalSuperblock, RawJournalSuperblock};
use fourscore_ondisk::superblock::JournalPlace;
use fourscore_ondisk::words::{high32, low32};
use fourscore_ondisk::{InodeNr, LogicalBlock, PhysBlock, RawSuperblock};
use zerocopy::FromBytes as _;

use super::relocate::Relocation;
use crate::error::{ResizeError, Result};
use crate::inodes::{self, Form, form};
use crate::map::{Map, Moves};
use crate::volume::Volume;

/// An inode of at most this size is written by one sector.
const SECTOR_BYTES: usize = 512;

/// The blocks of the log; `None` if the file system has no journal of its own.
pub(super) fn log_blocks(volume: &Volume<'_>) -> Result<Option<u32>> {
    let Some(JournalPlace::Inode(number)) = volume.sb().journal() else {
        return Ok(None);
    };
    let map = Map::read(volume, &inodes::read(volume, number)?)?;
    let first = map.extents.first();
    let first = first.ok_or_else(|| ResizeError::corrupt("a journal without blocks"))?;
    let bytes = volume.read(first.physical)?;
    let raw = RawJournalSuperblock::ref_from_prefix(&bytes);
    let (raw, _) = raw.map_err(|_| ResizeError::corrupt("a journal without a superblock"))?;
    let log = JournalSuperblock::try_from(raw)
        .map_err(ResizeError::corrupt)?
        .log();
    Ok(Some(log.end.0.saturating_sub(log.start.0)))
}

impl Relocation<'_, '_> {
    pub(crate) fn move_journal(&mut self) -> Result<()> {
        let Some(JournalPlace::Inode(number)) = self.volume.sb().journal() else {
            return Ok(());
        };
        let inode = inodes::read(self.volume, number)?;
        let map = Map::read(self.volume, &inode)?;
        let doomed = self.doomed(&map);
        if doomed.is_empty() && map.nodes.iter().all(|&node| node < self.end) {
            return Ok(());
        }
        let moves = self.reserve(&doomed, u64::MAX)?;
        let first = map.extents.first().map(|extent| extent.physical);
        match self.exchange(&inode, &map, &moves) {
            Some(exchange) => self.carry_out(&inode, first, &moves, &exchange),
            None => {
                self.write_empty_log(first, &moves)?;
                self.switch(&inode, &map, &moves)?;
                self.note_copy(number)?;
                self.commit_in_place()
            }
        }
    }

    /// The maps of the three steps; `None` if one of them does not fit into the inode.
    fn exchange(&self, inode: &Inode, map: &Map, moves: &Moves) -> Option<Exchange> {
        let is_in_inode = form(inode, self.volume.sb()) == Form::Extents && map.nodes.is_empty();
        if !is_in_inode || self.volume.geometry().inode_size_bytes() > SECTOR_BYTES {
            return None;
        }
        let block_size = self.volume.geometry().block_size();
        let length = u32::try_from(inode.size_bytes() >> block_size.bits()).ok()?;
        let moved = moves.translate(&map.extents);
        let (mut lengthened, mut exchanged) = (map.extents.clone(), moved.clone());
        let mut logical = length;
        for piece in moves.pieces() {
            let blocks = u32::try_from(piece.from.end.0 - piece.from.start.0).ok()?;
            let mut done = 0;
            while done < blocks {
                let part = (blocks - done).min(extent::MAX_WRITTEN_BLOCKS.into());
                let at = |physical: u64| Extent {
                    logical: LogicalBlock(logical),
                    physical: PhysBlock(physical + u64::from(done)),
                    blocks: part,
                    state: ExtentState::Written,
                };
                push(&mut lengthened, at(piece.to.0));
                push(&mut exchanged, at(piece.from.start.0));
                logical = logical.checked_add(part)?;
                done += part;
            }
        }
        let root = |extents: &[Extent]| {
            extent::build_extents(extents, &[], block_size, None, &mut |_, _| ()).ok()
        };
        Some(Exchange {
            lengthened: root(&lengthened)?,
            exchanged: root(&exchanged)?,
            shortened: root(&moved)?,
            more_blocks: u64::from(logical - length),
        })
    }

    /// Writes the log to its new place: its first block, and zeroes.
    fn write_empty_log(&self, first: Option<PhysBlock>, moves: &Moves) -> Result<()> {
        let block_size = self.volume.geometry().block_size();
        for piece in moves.pieces() {
            let start = block_size.offset(piece.to);
            let bytes = (piece.from.end.0 - piece.from.start.0) << block_size.bits();
            self.volume.device().write_zeroes(start..start + bytes)?;
        }
        if let Some(first) = first {
            let (place, _) = moves.find(first);
            if place != first {
                let superblock = self.volume.read(first)?;
                self.volume.write_now(place, &superblock)?;
            }
        }
        Ok(())
    }

    fn carry_out(
        &mut self,
        inode: &Inode,
        first: Option<PhysBlock>,
        moves: &Moves,
        exchange: &Exchange,
    ) -> Result<()> {
        let number = inode.number();
        let bits = self.volume.geometry().block_size().bits();
        let (size, sectors) = (inode.size_bytes(), inode.sectors());
        let (more, more_sectors) = (
            exchange.more_blocks << bits,
            exchange.more_blocks << (bits - 9),
        );
        self.set_journal_inode(
            number,
            exchange.lengthened,
            size + more,
            sectors + more_sectors,
        )?;
        self.commit()?;
        self.write_empty_log(first, moves)?;
        self.volume.device().flush()?;
        self.set_journal_inode(
            number,
            exchange.exchanged,
            size + more,
            sectors + more_sectors,
        )?;
        self.volume.write_inode_now(number)?;
        for piece in moves.pieces() {
            self.space.free(self.volume, &piece.from);
        }
        self.set_journal_inode(number, exchange.shortened, size, sectors)?;
        self.note_copy(number)?;
        self.commit()
    }

    fn set_journal_inode(
        &mut self,
        number: InodeNr,
        i_block: [u8; 60],
        size_bytes: u64,
        sectors: u64,
    ) -> Result<()> {
        inodes::change(self.volume, number, |inode| {
            *inode.i_block_mut() = i_block;
            inode
                .set_size_bytes(size_bytes)
                .map_err(ResizeError::corrupt)?;
            inode.set_sectors(sectors).map_err(ResizeError::corrupt)
        })
    }

    /// The superblock has a copy of the inode's map and size.
    fn note_copy(&mut self, number: InodeNr) -> Result<()> {
        let mut raw: RawSuperblock = *self.volume.sb().raw();
        if raw.s_jnl_backup_type == 0 {
            return Ok(());
        }
        let inode = inodes::read(self.volume, number)?;
        let (words, size) = raw.s_jnl_blocks.split_at_mut(15);
        for (word, bytes) in words.iter_mut().zip(inode.i_block().chunks_exact(4)) {
            *word = [bytes[0], bytes[1], bytes[2], bytes[3]].into();
        }
        if let [high, low] = size {
            (*high, *low) = (high32(inode.size_bytes()), low32(inode.size_bytes()));
        }
        self.volume.set_superblock(&raw)
    }
}

/// The roots of the journal's map in the three steps.
struct Exchange {
    lengthened: [u8; 60],
    exchanged: [u8; 60],
    shortened: [u8; 60],
    more_blocks: u64,
}

fn push(extents: &mut Vec<Extent>, extent: Extent) {
    match extents.last_mut() {
        Some(last) => match last.joined(&extent) {
            Some(joined) => *last = joined,
            None => extents.push(extent),
        },
        None => extents.push(extent),
    }
}
