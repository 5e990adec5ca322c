//! **Purpose.** Writes the data of files, and the nodes of extent trees and block maps.

use std::borrow::Cow;
use std::ops::Range;

use fourscore_block::BlockDevice;
use fourscore_ondisk::InodeNr;

use super::combine::COMBINE_BYTES;
use super::reader::{OpenContent, ReadError, Reader};
use super::{Image, Worker};
use crate::error::{BuildError, BuildResult};
use crate::layout::Run;
use crate::tree::NodeId;

/// Shorter ranges are copied, because sharing costs more.
const SHARED_FROM_BYTES: u64 = 64 << 10;
/// Shared ranges are a multiple of this, which is a multiple of every block size.
const SHARED_UNIT_BYTES: u64 = 64 << 10;

impl Image<'_> {
    /// Writes the data of the objects at these positions of the order.
    pub(super) fn write_contents(
        &self,
        worker: &mut Worker<'_>,
        positions: Range<usize>,
    ) -> BuildResult<()> {
        let order = self.forms.numbers.order();
        for &node in order.get(positions).unwrap_or_default() {
            if self.placed.is_empty(node) || self.forms.tree.list_of(node).is_some() {
                continue;
            }
            let whole = 0..u64::MAX;
            self.write_blocks(worker, node, whole)?;
            self.write_nodes(node)?;
        }
        Ok(())
    }

    /// Writes some blocks of a large file; with the first blocks also its nodes.
    pub(super) fn write_part(
        &self,
        worker: &mut Worker<'_>,
        node: NodeId,
        blocks: Range<u64>,
    ) -> BuildResult<()> {
        if blocks.start == 0 {
            self.write_nodes(node)?;
        }
        self.write_blocks(worker, node, blocks)
    }

    /// Reads the data of an object in `wanted`, a range of logical blocks, and writes it.
    fn write_blocks(
        &self,
        worker: &mut Worker<'_>,
        node: NodeId,
        wanted: Range<u64>,
    ) -> BuildResult<()> {
        let runs = self.runs_of(node);
        if runs.iter().all(|run| self.forms.stays_in_place(node, *run)) {
            return Ok(());
        }
        let Worker { reader, combiner } = worker;
        let failed = |why| self.read_error(node, why);
        let content = reader.open(node).map_err(failed)?;
        for run in runs.iter() {
            if self.forms.stays_in_place(node, *run) {
                continue;
            }
            let first = run.logical.max(wanted.start);
            let end = (run.logical + run.blocks).min(wanted.end);
            let mut at = first + self.share(&content, node, *run, first..end);
            while at < end {
                let most = COMBINE_BYTES as u64 >> self.block_bits();
                let blocks = (end - at).min(most);
                let physical = run.physical + (at - run.logical);
                let memory = combiner.blocks(physical, blocks);
                let memory = memory.map_err(|why| self.output_error(why))?;
                let from = at << self.block_bits();
                reader.read(node, &content, from, memory).map_err(failed)?;
                at += blocks;
            }
        }
        self.check(reader, node, &content)
    }

    /// Reads the whole data of an object that is stored in its inode.
    pub(super) fn read_whole(
        &self,
        reader: &mut Reader<'_>,
        node: NodeId,
        whole: &mut Vec<u8>,
    ) -> BuildResult<()> {
        let failed = |why| self.read_error(node, why);
        let content = reader.open(node).map_err(failed)?;
        whole.resize(to_index(self.forms.size_bytes(node)), 0);
        reader.read(node, &content, 0, whole).map_err(failed)?;
        self.check(reader, node, &content)
    }

    /// Shares these blocks of a run with the source (reflink), if the host can; returns the number
    /// of blocks shared, counted from the first.
    fn share(&self, content: &OpenContent<'_>, node: NodeId, run: Run, blocks: Range<u64>) -> u64 {
        let Some((source, from)) = content.shareable(&self.forms.tree, node) else {
            return 0;
        };
        let bits = self.block_bits();
        let start = blocks.start << bits;
        let end = (blocks.end << bits).min(self.forms.size_bytes(node));
        // The last block must not be shared: the source may have other data after the end of the
        // file.
        let len_bytes = end.saturating_sub(start) / SHARED_UNIT_BYTES * SHARED_UNIT_BYTES;
        if len_bytes < SHARED_FROM_BYTES {
            return 0;
        }
        let to = (run.physical + (blocks.start - run.logical)) << bits;
        let shared = self.disk.share(to..to + len_bytes, source, from + start);
        if shared { len_bytes >> bits } else { 0 }
    }

    fn check(
        &self,
        reader: &Reader<'_>,
        node: NodeId,
        content: &OpenContent<'_>,
    ) -> BuildResult<()> {
        let checked = reader.check(node, content);
        checked.map_err(|why| self.read_error(node, why))
    }

    fn runs_of(&self, node: NodeId) -> Cow<'_, [Run]> {
        self.placed.runs(self.forms, node)
    }

    /// Writes the nodes of an object's extent tree or block map.
    pub(super) fn write_nodes(&self, node: NodeId) -> BuildResult<()> {
        let nodes = self.placed.nodes(node);
        if nodes.is_empty() {
            return Ok(());
        }
        let number = self.forms.numbers.inode(node);
        self.write_map(&self.runs_of(node), nodes, number)
    }

    /// Writes the nodes of the extent tree or block map for these runs.
    pub(super) fn write_map(
        &self,
        runs: &[Run],
        nodes: &[u64],
        number: InodeNr,
    ) -> BuildResult<()> {
        if nodes.is_empty() {
            return Ok(());
        }
        let mut result = Ok(());
        self.forms
            .facts
            .map(runs, nodes, number, &mut |block, bytes| {
                if result.is_ok() {
                    result = self.device().write_at(&bytes, block.0 << self.block_bits());
                }
            })?;
        result.map_err(|why| self.output_error(why))
    }

    fn read_error(&self, node: NodeId, why: ReadError) -> BuildError {
        why.of(self.forms.tree.path_of(node))
    }
}

fn to_index(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}
