//! **Purpose.** SHA-256 of every file of an image, as `sha256sum -c` takes it in the extracted
//! tree.
//!
//! **Model.** All names are collected first; threads take files one by one and keep their sums to
//! themselves until all are done.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use fourscore_ondisk::InodeNr;
use fourscore_sync::atomic::{AtomicUsize, Ordering};
use fourscore_sync::thread;
use sha2::{Digest as _, Sha256};

use crate::facts::Kind;
use crate::failure::{Failure, Result};
use crate::image::Image;
use crate::text::push_hex;
use crate::tree::listing::Listing;
use crate::walk::hash::READ_BYTES;
use crate::walk::image::list;

type Sum = [u8; 32];

/// Writes the sums of all regular files to a file at `path`, sorted by name.
pub(super) fn write(image: &Image, path: &Path, threads: usize) -> Result<()> {
    let mut files = files(image)?;
    files.sort_unstable();
    let sums = sums(image, &files, threads)?;
    let written = File::create(path).and_then(|file| {
        let mut out = BufWriter::new(file);
        for ((name, _), sum) in files.iter().zip(&sums) {
            out.write_all(&line(name, sum))?;
        }
        out.into_inner()?.sync_all()
    });
    written.map_err(|why| Failure::new(path.display().to_string(), why))
}

/// Paths, with `./` in front, and inodes of all regular files.
fn files(image: &Image) -> Result<Vec<(Vec<u8>, InodeNr)>> {
    let mut files = Vec::new();
    let mut room = Vec::new();
    let mut left = vec![(b"./".to_vec(), InodeNr::ROOT)];
    while let Some((directory, inode)) = left.pop() {
        let mut listing = Listing::default();
        list(image, inode, &mut listing, &mut room)?;
        for nr in 0..listing.len() {
            let Ok(inode) = u32::try_from(listing.inode(nr)).map(InodeNr) else {
                continue;
            };
            let mut path = [&directory, listing.name(nr)].concat();
            let kind = match listing.kind(nr) {
                Some(kind) => kind,
                None => {
                    let facts = image.facts(inode);
                    facts.map_err(|why| image.failure(&path, why))?.kind
                }
            };
            match kind {
                Kind::File => files.push((path, inode)),
                Kind::Directory => {
                    path.push(b'/');
                    left.push((path, inode));
                }
                _ => {}
            }
        }
    }
    Ok(files)
}

fn sums(image: &Image, files: &[(Vec<u8>, InodeNr)], threads: usize) -> Result<Vec<Sum>> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut own = Vec::new();
        let mut buffer = vec![0; READ_BYTES];
        loop {
            let nr = next.fetch_add(1, Ordering::Relaxed);
            let Some((path, inode)) = files.get(nr) else {
                return Ok(own);
            };
            let sum = sum(image, *inode, &mut buffer);
            own.push((nr, sum.map_err(|why| image.failure(path, why))?));
        }
    };
    let mut sums = vec![[0; 32]; files.len()];
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            let own: Result<Vec<(usize, Sum)>> = match worker.join() {
                Ok(own) => own,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            for (nr, sum) in own? {
                sums[nr] = sum;
            }
        }
        Ok(sums)
    })
}

fn sum(image: &Image, inode: InodeNr, buffer: &mut [u8]) -> fourscore::Result<Sum> {
    let mut hash = Sha256::new();
    let mut at = 0;
    loop {
        let count = image.fs.read_at(inode, buffer, at)?;
        if count == 0 {
            return Ok(hash.finalize().into());
        }
        hash.update(&buffer[..count]);
        at += count as u64;
    }
}

/// A line of sha256sum: a name with a backslash or line break is escaped, and the line begins
/// with a backslash then.
fn line(name: &[u8], sum: &Sum) -> Vec<u8> {
    let mut line = Vec::with_capacity(name.len() + 70);
    let is_special = |byte: &u8| matches!(byte, b'\\' | b'\n' | b'\r');
    if name.iter().any(is_special) {
        line.push(b'\\');
    }
    push_hex(&mut line, sum);
    line.extend_from_slice(b"  ");
    for &byte in name {
        match byte {
            b'\\' => line.extend_from_slice(br"\\"),
            b'\n' => line.extend_from_slice(br"\n"),
            b'\r' => line.extend_from_slice(br"\r"),
            byte => line.push(byte),
        }
    }
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_as_sha256sum_does() {
        let sum = [0xab; 32];
        let hex = "ab".repeat(32);
        assert_eq!(line(b"./a b", &sum), format!("{hex}  ./a b\n").as_bytes());
        let odd = line(b"./a\\b\nc", &sum);
        assert_eq!(odd, format!("\\{hex}  ./a\\\\b\\nc\n").as_bytes());
    }
}
