//! **Purpose.** Pass 3: every directory is below the root, and its `..` refers to the directory
//! that has its name.

use fourscore_ondisk::InodeNr;

use crate::finding::Finding;
use crate::pass2::Tree;
use crate::report::Findings;
use crate::state::State;

/// The state of the path from a directory up to the root.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Path {
    Unknown,
    /// Part of the path that is being followed.
    Open,
    /// It ends at the root, or at a directory that was reported as lost.
    Ends,
}

/// Checks the tree of directories.
pub(crate) fn run(state: &State, tree: &Tree, findings: &mut Findings) {
    let root = InodeNr::ROOT;
    if !state.directories.contains(root.0.into()) {
        findings.push(Finding::NoRoot { inode: root });
    }
    let parents: Vec<InodeNr> = tree.nodes().map(|node| node.parent).collect();
    let mut paths = vec![Path::Unknown; parents.len()];
    for (rank, node) in tree.nodes().enumerate() {
        let inode = node.inode;
        let expected = if inode == root { root } else { node.parent };
        if expected.0 == 0 {
            if !state.orphans.contains(&inode) {
                let dotdot = node.dotdot;
                findings.push(Finding::DirLost { inode, dotdot });
            }
            continue;
        }
        // Pass 2 reports a missing `..`.
        let found = node.dotdot;
        if found != expected && found.0 != 0 {
            findings.push(Finding::DotDotInode {
                inode,
                found,
                expected,
            });
        }
        if is_in_new_cycle(rank, tree, &parents, &mut paths) {
            let parent = node.parent;
            findings.push(Finding::DirLoop { inode, parent });
        }
    }
}

/// Follows the parents of a directory; returns whether they form a cycle. Each cycle is found once.
fn is_in_new_cycle(rank: usize, tree: &Tree, parents: &[InodeNr], paths: &mut [Path]) -> bool {
    let mut followed = Vec::new();
    let mut at = Some(rank);
    let mut is_cycle = false;
    while let Some(rank) = at {
        match paths.get(rank) {
            Some(Path::Unknown) => {
                paths[rank] = Path::Open;
                followed.push(rank);
            }
            Some(Path::Open) => {
                is_cycle = true;
                break;
            }
            Some(Path::Ends) | None => break,
        }
        let parent = parents.get(rank).copied().unwrap_or_default();
        at = tree.rank(parent).filter(|_| parent != InodeNr::ROOT);
    }
    for rank in followed {
        paths[rank] = Path::Ends;
    }
    is_cycle
}
