//! **Purpose.** Contents of files, and the nodes of their trees and maps.

use std::borrow::Cow;
use std::ops::Range;

use fourscore_block::BlockDevice;
use fourscore_ondisk::InodeNr;

use super::reader::{OpenContent, ReadError, Reader};
use super::stretch::STRETCH_BYTES;
use super::{Hands, Image};
use crate::error::{BuildError, BuildResult};
use crate::layout::Run;
use crate::tree::NodeId;

/// Less is copied sooner than shared.
const SHARED_FROM_BYTES: u64 = 64 << 10;
/// What is shared is a multiple of this: of the blocks of every host and of every image.
const SHARED_UNIT_BYTES: u64 = 64 << 10;

impl Image<'_> {
    /// The contents of the objects at these positions.
    pub(super) fn write_contents(
        &self,
        hands: &mut Hands<'_>,
        positions: Range<usize>,
    ) -> BuildResult<()> {
        let order = self.forms.numbers.order();
        for &node in order.get(positions).unwrap_or_default() {
            if self.placed.is_empty(node) || self.forms.tree.list_of(node).is_some() {
                continue;
            }
            let whole = 0..u64::MAX;
            self.write_blocks(hands, node, whole)?;
            self.write_nodes(node)?;
        }
        Ok(())
    }

    /// Some blocks of a large file, and with the first its nodes.
    pub(super) fn write_part(
        &self,
        hands: &mut Hands<'_>,
        node: NodeId,
        blocks: Range<u64>,
    ) -> BuildResult<()> {
        if blocks.start == 0 {
            self.write_nodes(node)?;
        }
        self.write_blocks(hands, node, blocks)
    }

    /// Reads an object and puts what lies in `wanted`, logical blocks, where it belongs.
    fn write_blocks(
        &self,
        hands: &mut Hands<'_>,
        node: NodeId,
        wanted: Range<u64>,
    ) -> BuildResult<()> {
        let runs = self.runs_of(node);
        if runs.iter().all(|run| self.forms.has_stayed(node, *run)) {
            return Ok(());
        }
        let Hands { reader, stretch } = hands;
        let failed = |why| self.read_error(node, why);
        let content = reader.open(node).map_err(failed)?;
        for run in runs.iter() {
            if self.forms.has_stayed(node, *run) {
                continue;
            }
            let first = run.logical.max(wanted.start);
            let end = (run.logical + run.blocks).min(wanted.end);
            let mut at = first + self.share(&content, node, *run, first..end);
            while at < end {
                let most = STRETCH_BYTES as u64 >> self.block_bits();
                let blocks = (end - at).min(most);
                let physical = run.physical + (at - run.logical);
                let memory = stretch.blocks(physical, blocks);
                let memory = memory.map_err(|why| self.output_error(why))?;
                let from = at << self.block_bits();
                reader.read(node, &content, from, memory).map_err(failed)?;
                at += blocks;
            }
        }
        self.check(reader, node, &content)
    }

    /// Reads all of an object that is so short that it goes into its inode.
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

    /// Shares with the source what the host can share of these blocks of a run; says how many from
    /// the first on.
    fn share(&self, content: &OpenContent<'_>, node: NodeId, run: Run, blocks: Range<u64>) -> u64 {
        let Some((source, from)) = content.shareable(&self.forms.tree, node) else {
            return 0;
        };
        let bits = self.block_bits();
        let start = blocks.start << bits;
        let end = (blocks.end << bits).min(self.forms.size_bytes(node));
        // Nothing of the last block of a file may show that is behind its end.
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

    /// The nodes of an object's tree or map.
    pub(super) fn write_nodes(&self, node: NodeId) -> BuildResult<()> {
        let nodes = self.placed.nodes(node);
        if nodes.is_empty() {
            return Ok(());
        }
        let number = self.forms.numbers.inode(node);
        self.write_map(&self.runs_of(node), nodes, number)
    }

    /// The nodes of the tree or map that leads from an inode to these runs.
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
