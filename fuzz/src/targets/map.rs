//! **Purpose.** Extent trees and block maps, walked with the blocks of the input as the device.
//!
//! **Input.** A byte of switches, a logical block, `i_block`, then blocks of 1 KiB.

use fourscore_ondisk::checksum::{ChecksumSeed, InodeGeneration};
use fourscore_ondisk::extent::{self, Child, LOGICAL_END, Node};
use fourscore_ondisk::{BlockSize, InodeNr, LogicalBlock, PhysBlock, blockmap};

use crate::device::BLOCK_BYTES;
use crate::input::Input;
use crate::targets::SEAL;

/// Blocks of the imaginary file system, first and one past the last.
const FIRST: PhysBlock = PhysBlock(1);
const END: PhysBlock = PhysBlock(1 << 33);

/// Runs the target.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let switches = input.u8();
    let logical = LogicalBlock(input.u32());
    let root = input.padded(extent::ROOT_BYTES);
    let device: Vec<Vec<u8>> = (0..4).map(|_| input.padded(BLOCK_BYTES)).collect();
    walk_tree(&root, &device, logical, switches);
    let sizes = [0, u32::from(switches >> 4) % 7];
    for block_size in sizes.into_iter().filter_map(BlockSize::from_log) {
        walk_pointers(&root, &device, logical, block_size);
    }
}

/// The block that a number means here: any number means some block.
fn read(device: &[Vec<u8>], block: PhysBlock) -> &Vec<u8> {
    let nth = usize::try_from(block.0).unwrap_or(0) % device.len();
    &device[nth]
}

fn walk_tree(root: &[u8], device: &[Vec<u8>], logical: LogicalBlock, switches: u8) {
    let physical = FIRST..END;
    if extent::check_root(root, &physical).is_err() {
        return;
    }
    let has_checksums = switches & 2 != 0;
    let seed = ChecksumSeed::from_stored(7).for_inode(InodeNr(12), InodeGeneration(1));
    let mut bytes = root.to_vec();
    let mut node = Node::parse(&bytes).expect("checked");
    let mut end = LOGICAL_END;
    for _ in 0..=extent::MAX_DEPTH {
        check_order(&node, end);
        let Node::Inner(inner) = node else { return };
        let child = inner.find(logical, end).or_else(|| inner.get(0, end));
        let Some(child) = child else { return };
        assert!(child.block >= FIRST && child.block < END);
        let mut below = read(device, child.block).clone();
        if has_checksums && switches & SEAL != 0 {
            let _shape_is_wrong = extent::seal(&mut below, seed);
        }
        if extent::check_node(&below, &child, &physical, has_checksums.then_some(seed)).is_err() {
            return;
        }
        bytes = below;
        node = Node::parse(&bytes).expect("checked");
        assert_eq!(
            node.depth(),
            child.depth,
            "the tree gets lower on the way down"
        );
        end = child.logical.end;
    }
    panic!("a tree deeper than its root says");
}

/// Entries are in order, without overlap, inside of what the parent said and of the device.
fn check_order(node: &Node<'_>, end: LogicalBlock) {
    let mut next = LogicalBlock(0);
    match node {
        Node::Leaf(leaf) => {
            for extent in leaf.iter() {
                assert!(extent.logical >= next && extent.blocks > 0);
                assert!(extent.physical >= FIRST);
                assert!(extent.physical.0 + u64::from(extent.blocks) <= END.0);
                assert_eq!(extent.map(extent.logical), Some(extent.physical));
                assert_eq!(leaf.find(extent.logical), Some(extent));
                next = extent.logical_end();
            }
        }
        Node::Inner(inner) => {
            for position in 0..inner.len() {
                let Child { logical, .. } = inner.get(position, end).expect("inside");
                assert!(logical.start >= next && logical.start < logical.end);
                next = logical.end;
            }
        }
    }
    assert!(next <= end, "{next:?} is behind {end:?}");
}

fn walk_pointers(root: &[u8], device: &[Vec<u8>], logical: LogicalBlock, block_size: BlockSize) {
    let physical = FIRST..END;
    if blockmap::check_root(root, &physical).is_err() {
        return;
    }
    let Some(path) = blockmap::Path::to(logical, block_size) else {
        assert!(logical >= blockmap::logical_end(block_size));
        return;
    };
    let mut bytes = root.to_vec();
    let (&last, above) = path.slots().split_last().expect("one slot at least");
    for (level, &slot) in above.iter().enumerate() {
        assert!(path.blocks_below(level) > 0);
        let Some(block) = blockmap::pointer(&bytes, slot) else {
            return;
        };
        bytes.clone_from(read(device, block));
        bytes.resize(block_size.bytes(), 0);
        if blockmap::check_block(&bytes, block_size, &physical).is_err() {
            return;
        }
    }
    for limit in [1, 5, u32::MAX] {
        let run = blockmap::run(&bytes, last, limit).expect("the slot is inside");
        assert!(run.pointers > 0 && run.pointers <= limit);
        if let Some(first) = run.physical {
            assert!(first >= FIRST && first.0 + u64::from(run.pointers) <= END.0);
        }
    }
}
