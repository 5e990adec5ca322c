//! **Purpose.** Writes directories, attribute blocks and inode tables.

use std::ops::Range;

use fourscore_block::BlockDevice;
use fourscore_ondisk::words::put;
use fourscore_ondisk::xattr::{self, RawBlockHeader};
use fourscore_ondisk::{GroupNr, GroupOffset, InodeNr, PhysBlock};
use zerocopy::FromBytes;

use super::combine::COMBINE_BYTES;
use super::{Image, Worker};
use crate::error::{BuildError, BuildResult};
use crate::layout::SharedBlock;
use crate::tree::NodeId;

impl Image<'_> {
    /// Writes the blocks of these directories.
    pub(super) fn write_directories(
        &self,
        worker: &mut Worker<'_>,
        nodes: &[NodeId],
    ) -> BuildResult<()> {
        let failed = |why| self.output_error(why);
        let most = COMBINE_BYTES as u64 >> self.block_bits();
        let mut large = Vec::new();
        for &node in nodes {
            let Some(directory) = self.forms.directory(node) else {
                continue;
            };
            let blocks = u64::from(directory.shape.blocks());
            if blocks == 0 {
                // The directory is inline.
                continue;
            }
            if let Some(block) = self.placed.single_run(node).filter(|_| blocks <= most) {
                let memory = worker.combiner.blocks(block, blocks).map_err(failed)?;
                memory.fill(0);
                directory.fill(memory);
                continue;
            }
            let bytes = blocks << self.block_bits();
            large.clear();
            large.resize(usize::try_from(bytes).unwrap_or(usize::MAX), 0);
            directory.fill(&mut large);
            for run in self.placed.runs(self.forms, node).iter() {
                let from = run.logical << self.block_bits();
                let part = to_index(from)..to_index(from + (run.blocks << self.block_bits()));
                let part = large.get(part).unwrap_or_default();
                let at = run.physical << self.block_bits();
                self.device().write_at(part, at).map_err(failed)?;
            }
            self.write_nodes(node)?;
        }
        Ok(())
    }

    /// Writes the attribute blocks with their reference counts.
    pub(super) fn write_xattr_blocks(&self, worker: &mut Worker<'_>) -> BuildResult<()> {
        let failed = |why| self.output_error(why);
        for &SharedBlock {
            block,
            set,
            sharers,
        } in &self.placed.shared
        {
            let Some(encoded) = self.forms.sets.get(set as usize) else {
                continue;
            };
            let memory = worker.combiner.blocks(block, 1).map_err(failed)?;
            memory.fill(0);
            put(memory, 0, &encoded.block);
            if let Ok((header, _)) = RawBlockHeader::mut_from_prefix(memory) {
                header.h_refcount = sharers.into();
            }
            if self.forms.facts.metadata_csum {
                let seed = self.forms.facts.fs_seed();
                let sealed = xattr::seal_block(memory, PhysBlock(block), seed);
                sealed.map_err(|_| BuildError::Invalid("a block without a header"))?;
            }
        }
        Ok(())
    }

    /// Writes the data of large attribute values.
    pub(super) fn write_values(
        &self,
        worker: &mut Worker<'_>,
        values: Range<usize>,
    ) -> BuildResult<()> {
        let failed = |why| self.output_error(why);
        for number in values {
            let Some(value) = self.forms.values.get(number) else {
                continue;
            };
            let runs = self.placed.value_runs(self.forms, number);
            for run in runs.iter() {
                let memory = worker.combiner.blocks(run.physical, run.blocks);
                let memory = memory.map_err(failed)?;
                memory.fill(0);
                let from = to_index(run.logical << self.block_bits());
                let rest = value.bytes.get(from..).unwrap_or_default();
                let here = rest.len().min(memory.len());
                put(memory, 0, &rest[..here]);
            }
            let nodes = self.placed.value_nodes(number);
            let inode = self.forms.values.inode(number);
            self.write_map(&runs, nodes, inode)?;
        }
        Ok(())
    }

    /// Writes a part of a group's inode table.
    pub(super) fn write_inodes(
        &self,
        worker: &mut Worker<'_>,
        group: GroupNr,
        range: Range<u32>,
    ) -> BuildResult<()> {
        let geometry = self.plan.superblock().geometry();
        let Some(table) = self.inode_table(group) else {
            return Err(BuildError::Invalid("an inode without a group"));
        };
        let inode_bytes = geometry.inode_size_bytes();
        let block_bytes = geometry.block_size().bytes();
        let count = range.end.saturating_sub(range.start) as usize;
        let mut bytes = vec![0; (count * inode_bytes).next_multiple_of(block_bytes)];
        let maker = self.inode_maker();
        let mut content = Vec::new();
        for (index, inode) in range.clone().zip(bytes.chunks_exact_mut(inode_bytes)) {
            let number = InodeNr(group.0 * geometry.inodes_per_group() + index + 1);
            if let Some(node) = self.forms.numbers.node(number) {
                content.clear();
                if self.forms.is_inline(node) && self.forms.tree.list_of(node).is_none() {
                    self.read_whole(&mut worker.reader, node, &mut content)?;
                }
                maker.fill(node, number, inode, &content)?;
            } else if let Some(value) = self.forms.values.of_inode(number) {
                maker.fill_value(value, number, inode)?;
            } else if let Some(reserved) = self.reserved.get(number) {
                put(inode, 0, reserved);
            }
        }
        let place = geometry.inode_place(table, GroupOffset(range.start));
        let at = (place.block.0 << self.block_bits()) + place.offset_bytes as u64;
        self.device()
            .write_at(&bytes, at)
            .map_err(|why| self.output_error(why))
    }
}

fn to_index(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}
