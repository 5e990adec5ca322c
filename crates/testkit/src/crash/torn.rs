//! **Purpose.** Recognises the orphans that e2fsck leaves behind a torn commit block
//! (docs/FINDINGS.md, 23), and removes such a block.

use fourscore_ondisk::Tid;

/// What e2fsck prints in front of and behind the number of a transaction that it does not replay.
const REFUSED: (&str, &str) = (
    ": Journal transaction ",
    " was corrupt, replay was aborted.",
);

/// What it prints for the orphans that it has not cleared.
const LEFT: &str = "Inodes that were part of a corrupted orphan linked list found.";

/// The commit block of a log in the format of jbd2: its magic number and its type.
const COMMIT: [u8; 8] = [0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 2];

/// The transaction with a torn commit block because of which `e2fsck -p` has left orphans; `None`
/// if it has not.
#[must_use]
pub fn transaction_before_orphans(said: &str) -> Option<Tid> {
    if !said.contains(LEFT) {
        return None;
    }
    let (before, after) = REFUSED;
    said.lines().find_map(|line| {
        let (_, rest) = line.split_once(before)?;
        let tid = rest.strip_suffix(after)?;
        tid.parse().ok().map(Tid)
    })
}

/// Removes the commit block of the transaction `tid` from an image, as if nothing of it had
/// arrived. Returns how many such blocks there were.
pub fn remove_commit(image: &mut [u8], tid: Tid) -> usize {
    let header = [&COMMIT[..], &tid.0.to_be_bytes()].concat();
    let commits = image.chunks_mut(1024);
    let commits = commits.filter(|block| block.starts_with(&header));
    commits.map(|block| block.fill(0)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_commit_with_orphans_is_recognised() {
        let refused = "a: Journal transaction 5 was corrupt, replay was aborted.\n";
        let left = format!("{refused}a: {LEFT}  \n");
        assert_eq!(transaction_before_orphans(&left), Some(Tid(5)));
        assert_eq!(transaction_before_orphans(refused), None);
        assert_eq!(transaction_before_orphans(LEFT), None);
    }

    #[test]
    fn only_the_commit_of_the_transaction_is_removed() {
        let block = |tid: u8| [&COMMIT[..], &[0, 0, 0, tid], &[7; 1012]].concat();
        let mut image = [block(4), block(5)].concat();
        assert_eq!(remove_commit(&mut image, Tid(5)), 1);
        assert_eq!(image, [block(4), vec![0; 1024]].concat());
    }
}
