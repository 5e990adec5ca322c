//! **Purpose.** Pass 3: every directory is below the root, and its `..` leads to where its name is.

use fourscore_ondisk::InodeNr;

use crate::finding::Finding;
use crate::pass2::Tree;
use crate::report::Findings;
use crate::state::State;

/// What is known of the way up from a directory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Unknown,
    /// Part of the way that is being followed.
    Open,
    /// It ends: at the root, or at a directory that was told to be lost.
    Ends,
}

/// Checks the tree of directories.
pub(crate) fn run(state: &State, tree: &Tree, findings: &mut Findings) {
    let root = InodeNr::ROOT;
    if !state.directories.contains(root.0.into()) {
        findings.push(Finding::NoRoot { inode: root });
    }
    let parents: Vec<InodeNr> = tree.nodes().map(|node| node.parent).collect();
    let mut ways = vec![Way::Unknown; parents.len()];
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
        // Where there is no `..` at all, pass 2 has said so.
        let found = node.dotdot;
        if found != expected && found.0 != 0 {
            findings.push(Finding::DotDotInode {
                inode,
                found,
                expected,
            });
        }
        if goes_in_a_circle(rank, tree, &parents, &mut ways) {
            let parent = node.parent;
            findings.push(Finding::DirLoop { inode, parent });
        }
    }
}

/// Follows the way up from a directory; whether it comes back to where it was. Each circle is found
/// once.
fn goes_in_a_circle(rank: usize, tree: &Tree, parents: &[InodeNr], ways: &mut [Way]) -> bool {
    let mut path = Vec::new();
    let mut at = Some(rank);
    let mut circle = false;
    while let Some(rank) = at {
        match ways.get(rank) {
            Some(Way::Unknown) => {
                ways[rank] = Way::Open;
                path.push(rank);
            }
            Some(Way::Open) => {
                circle = true;
                break;
            }
            Some(Way::Ends) | None => break,
        }
        let parent = parents.get(rank).copied().unwrap_or_default();
        at = tree.rank(parent).filter(|_| parent != InodeNr::ROOT);
    }
    for rank in path {
        ways[rank] = Way::Ends;
    }
    circle
}
