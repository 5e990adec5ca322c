//! **Purpose.** Contents of files, and the nodes of their trees and maps.

use std::borrow::Cow;
use std::ops::Range;

use fourscore_block::BlockDevice;

use super::Image;
use super::reader::{OpenContent, ReadError, Reader};
use super::stretch::{STRETCH_BYTES, Stretch};
use crate::error::{BuildError, BuildResult};
use crate::layout::Run;
use crate::tree::NodeId;

impl Image<'_> {
    /// The contents of the objects at these positions.
    pub(super) fn write_contents(&self, positions: Range<usize>) -> BuildResult<()> {
        let mut reader = Reader::new(&self.forms.tree);
        let mut stretch = Stretch::new(self.device, self.block_bits());
        let order = self.forms.numbers.order();
        for &node in order.get(positions).unwrap_or_default() {
            if self.placed.is_empty(node) || self.forms.tree.list_of(node).is_some() {
                continue;
            }
            let whole = 0..u64::MAX;
            self.write_blocks(&mut reader, &mut stretch, node, whole)?;
            self.write_nodes(node)?;
        }
        stretch.flush().map_err(|why| self.output_error(why))
    }

    /// Some blocks of a large file, and with the first its nodes.
    pub(super) fn write_part(&self, node: NodeId, blocks: Range<u64>) -> BuildResult<()> {
        let mut reader = Reader::new(&self.forms.tree);
        let mut stretch = Stretch::new(self.device, self.block_bits());
        if blocks.start == 0 {
            self.write_nodes(node)?;
        }
        self.write_blocks(&mut reader, &mut stretch, node, blocks)?;
        stretch.flush().map_err(|why| self.output_error(why))
    }

    /// Reads an object and puts what lies in `wanted`, logical blocks, where it belongs.
    fn write_blocks(
        &self,
        reader: &mut Reader<'_>,
        stretch: &mut Stretch<'_, impl BlockDevice>,
        node: NodeId,
        wanted: Range<u64>,
    ) -> BuildResult<()> {
        let failed = |why| self.read_error(node, why);
        let content = reader.open(node).map_err(failed)?;
        for run in self.runs_of(node).iter() {
            let first = run.logical.max(wanted.start);
            let end = (run.logical + run.blocks).min(wanted.end);
            let mut at = first;
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
        let mut result = Ok(());
        let runs = self.runs_of(node);
        self.forms
            .facts
            .map(&runs, nodes, number, &mut |position, bytes| {
                if let (Ok(()), Some(&block)) = (&result, nodes.get(position)) {
                    result = self.device.write_at(&bytes, block << self.block_bits());
                }
            });
        result.map_err(|why| self.output_error(why))
    }

    fn read_error(&self, node: NodeId, why: ReadError) -> BuildError {
        let path = self.forms.tree.path_of(node);
        match why {
            ReadError::Io(why) => BuildError::Source { path, why },
            ReadError::Changed => BuildError::Changed { path },
        }
    }
}
