//! **Purpose.** Encrypted directories, and files with a verity descriptor.

use std::fs::{self, File};
use std::io::Write as _;
use std::process::Stdio;

use anyhow::{Context, Result};

use super::{Writer, content};
use crate::tools;

/// The verity metadata begins at the end of the data, rounded up to this (ext4's choice).
const VERITY_ALIGNMENT_BYTES: u64 = 65_536;

impl Writer<'_> {
    /// Writes both kinds if the configuration has them.
    pub(super) fn sealed(&self) -> Result<()> {
        if self.limits.encryption.yes() {
            self.encrypted()?;
        }
        if self.limits.verity.yes() {
            self.verity()?;
        }
        Ok(())
    }

    /// A directory under a policy of version 2, whose key is gone once the image is unmounted.
    fn encrypted(&self) -> Result<()> {
        let folder = self.directory("encrypted")?;
        let mut add_key = tools::command("xfs_io")?;
        add_key.args(["-c", "add_enckey"]).arg(self.root);
        add_key
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = add_key.spawn()?;
        child
            .stdin
            .take()
            .context("no stdin of xfs_io")?
            .write_all(&[0x80; 64])?;
        let output = child.wait_with_output()?;
        let text = tools::describe(&add_key, &output);
        let key = text
            .lines()
            .find_map(|line| line.strip_prefix("Added encryption key with identifier "))
            .with_context(|| format!("no key identifier: {text}"))?
            .trim()
            .to_owned();
        let policy = format!("set_encpolicy -v 2 {key}");
        tools::stdout_of(tools::command("xfs_io")?.args(["-c", &policy]).arg(&folder))?;
        self.file("encrypted/short", 100)?;
        self.file(
            "encrypted/larger-than-a-block",
            3 * self.limits.block_size_bytes + 1,
        )?;
        self.file(&format!("encrypted/{}", "e".repeat(255)), 0)?;
        self.directory("encrypted/below")?;
        self.file("encrypted/below/file", 10)?;
        std::os::unix::fs::symlink("target/of/it", folder.join("symlink"))?;
        Ok(())
    }

    /// The bytes of a file with verity, laid out as ext4 does, up to the flag and the size, which
    /// debugfs sets afterwards: content, hash tree, descriptor, and the descriptor's size in the
    /// last four bytes of the last block.
    fn verity(&self) -> Result<()> {
        let block = self.limits.block_size_bytes;
        let folder = self.directory("verity")?;
        let name = "verity/file";
        let file = self.file(name, VERITY_CONTENT_BYTES)?;
        drop(file);
        let data = fs::read(self.at(name))?;
        let block_len = usize::try_from(block)?;
        let leaves: Vec<u8> = data
            .chunks(block_len)
            .map(|chunk| padded(chunk, block_len))
            .map(|chunk| sha256(&chunk, &folder.join("chunk")))
            .collect::<Result<Vec<_>>>()?
            .concat();
        let tree = padded(&leaves, block_len);
        let root = sha256(&tree, &folder.join("chunk"))?;
        let descriptor = descriptor(block, &root);
        let file = File::options().write(true).open(self.at(name))?;
        let tree_at = VERITY_CONTENT_BYTES.next_multiple_of(VERITY_ALIGNMENT_BYTES);
        content::write(&file, &tree, tree_at)?;
        let mut last_block = padded(&descriptor, block_len);
        let size = u32::try_from(descriptor.len())?.to_le_bytes();
        last_block[block_len - size.len()..].copy_from_slice(&size);
        content::write(&file, &last_block, tree_at + block)
    }
}

/// The content of the file with verity; its hash tree has one level.
pub(crate) const VERITY_CONTENT_BYTES: u64 = 10_000;

fn padded(bytes: &[u8], len_bytes: usize) -> Vec<u8> {
    let mut padded = bytes.to_vec();
    padded.resize(len_bytes, 0);
    padded
}

/// SHA-256 by the program of coreutils.
fn sha256(bytes: &[u8], scratch: &std::path::Path) -> Result<Vec<u8>> {
    fs::write(scratch, bytes)?;
    let text = tools::stdout_of(tools::command("sha256sum")?.arg("-b").arg(scratch))?;
    fs::remove_file(scratch)?;
    let hex = text
        .trim_start_matches('\\')
        .split_whitespace()
        .next()
        .context("no digest")?;
    (0..32)
        .map(|at| {
            let digits = hex.get(2 * at..2 * at + 2).context("short digest")?;
            Ok(u8::from_str_radix(digits, 16)?)
        })
        .collect()
}

/// `struct fsverity_descriptor`: version 1, SHA-256, no salt, no signature.
fn descriptor(block_size_bytes: u64, root: &[u8]) -> Vec<u8> {
    let log_block_size = u8::try_from(block_size_bytes.trailing_zeros()).unwrap_or(0);
    let mut bytes = vec![1, 1, log_block_size, 0, 0, 0, 0, 0];
    bytes.extend_from_slice(&VERITY_CONTENT_BYTES.to_le_bytes());
    bytes.extend_from_slice(root);
    padded(&bytes, 256)
}
