//! **Purpose.** The history of a device from a known state on: the input of every exploration.
//!
//! **Model.** The bytes before, and the events in the order in which they completed. A history of
//! several threads cannot be reproduced from its seed, so one that shows a fault is written to a
//! file, from which its states can be reproduced.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use fourscore_block::{BlockDevice, Durable, Event, RecordingDevice};

/// The first bytes of a history's file.
const MAGIC: &[u8; 8] = b"4SHIST01";

/// The bytes of a device, and the events on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// The device before the first event.
    pub base: Vec<u8>,
    /// The events in the order of completion.
    pub events: Vec<Event>,
}

impl History {
    /// The history that `device` recorded since it was made over `base`.
    ///
    /// # Errors
    /// If `base` cannot be read.
    pub fn of(device: &RecordingDevice, base: &dyn BlockDevice) -> Result<Self> {
        let len = usize::try_from(base.len_bytes()).context("the device is too large")?;
        let mut bytes = vec![0; len];
        base.read_at(&mut bytes, 0)?;
        Ok(Self {
            base: bytes,
            events: device.events(),
        })
    }

    /// Writes the history to a file, together with bytes of the caller.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save(&self, path: &Path, beside: &[u8]) -> Result<()> {
        let mut out = MAGIC.to_vec();
        put_bytes(&mut out, beside);
        put_bytes(&mut out, &self.base);
        for event in &self.events {
            match event {
                Event::Write {
                    offset,
                    bytes,
                    durable,
                } => {
                    let kind = match durable {
                        Durable::AfterFlush => 0,
                        Durable::AtOnce => 1,
                    };
                    put_words(&mut out, [kind, *offset]);
                    put_bytes(&mut out, bytes);
                }
                Event::WriteZeroes(range) => put_words(&mut out, [2, range.start, range.end]),
                Event::Discard(range) => put_words(&mut out, [3, range.start, range.end]),
                Event::Flush { covers } => put_words(&mut out, [4, *covers as u64]),
                Event::Note(note) => put_words(&mut out, [5, *note]),
            }
        }
        fs::write(path, out).with_context(|| format!("{} cannot be written", path.display()))
    }

    /// Reads what [`History::save`] wrote: the history, and the caller's own bytes.
    ///
    /// # Errors
    /// If the file cannot be read or is no history.
    pub fn load(path: &Path) -> Result<(Self, Vec<u8>)> {
        let bytes = fs::read(path).with_context(|| format!("{} cannot be read", path.display()))?;
        let mut rest = Rest(&bytes);
        ensure!(rest.take(MAGIC.len())? == MAGIC, "not a history");
        let beside = rest.bytes()?.to_vec();
        let base = rest.bytes()?.to_vec();
        let mut events = Vec::new();
        while !rest.0.is_empty() {
            events.push(match rest.word()? {
                kind @ (0 | 1) => Event::Write {
                    offset: rest.word()?,
                    bytes: rest.bytes()?.into(),
                    durable: if kind == 1 {
                        Durable::AtOnce
                    } else {
                        Durable::AfterFlush
                    },
                },
                2 => Event::WriteZeroes(rest.word()?..rest.word()?),
                3 => Event::Discard(rest.word()?..rest.word()?),
                4 => Event::Flush {
                    covers: usize::try_from(rest.word()?)?,
                },
                5 => Event::Note(rest.word()?),
                kind => bail!("an event of kind {kind}"),
            });
        }
        Ok((Self { base, events }, beside))
    }
}

fn put_words<const N: usize>(out: &mut Vec<u8>, words: [u64; N]) {
    for word in words {
        out.extend_from_slice(&word.to_le_bytes());
    }
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_words(out, [bytes.len() as u64]);
    out.extend_from_slice(bytes);
}

/// The rest of a file.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self
            .0
            .split_at_checked(len)
            .context("the file ends early")?;
        self.0 = rest;
        Ok(taken)
    }

    fn word(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into()?))
    }

    fn bytes(&mut self) -> Result<&'a [u8]> {
        let len = usize::try_from(self.word()?)?;
        self.take(len)
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;

    use fourscore_block::RamDevice;
    use fourscore_sync::Arc;

    use super::*;

    #[test]
    fn a_saved_history_is_read_back_and_a_short_file_is_refused() {
        let base = Arc::new(RamDevice::from_bytes(b"0123456789"));
        let device = RecordingDevice::new(base.clone());
        device.write_at(b"ab", 3).unwrap();
        device.write_fua(&[IoSlice::new(b"c")], 9).unwrap();
        device.note(77);
        device.flush().unwrap();
        device.discard(1..2).unwrap();
        device.write_zeroes(4..6).unwrap();
        let history = History::of(&device, &*base).unwrap();
        assert_eq!(history.base, b"0123456789");
        assert_eq!(history.events.len(), 6);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history");
        history.save(&path, b"seed 5").unwrap();
        assert_eq!(History::load(&path).unwrap(), (history, b"seed 5".to_vec()));
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        let error = History::load(&path).unwrap_err();
        assert_eq!(error.to_string(), "the file ends early");
    }
}
