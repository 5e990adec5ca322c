//! **Purpose.** A device for crash tests: it records every write, and can make the possible states
//! of the device after a crash at any moment.
//!
//! **Model.** A log of [`Event`]s in the order in which they completed, and the state after all of
//! them. A *cut* is a number of events: the crash happened after that many. The device may then be
//! in any of these states:
//!
//! ```text
//!   w1 w2 F  w3 w4f w5 | cut          F = flush, f = written with FUA
//!   durable: w1 w2 w4f;  w3 and w5: kept, lost or torn, independently
//! ```
//!
//! A flush covers the writes that were complete when it *began*: with several threads, writes may
//! complete while it runs. They are before it in the log, but are not made durable by it. A test
//! can add notes of its own to the log, for example that an operation was acknowledged.
//!
//! **Not here.** Which cuts and survivals to try: the crash tests of the journal and the file
//! system decide.
//!
//! **Invariants.** The base is never written. Two writes to the same byte are replayed in the order
//! in which they were made; a lost one has no effect.
//!
//! **Locking.** One lock around the log and the state. Under it there are only operations in
//! memory, and reads of the base.

use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;

use fourscore_sync::{Arc, Mutex, thread};

use crate::device::{BlockDevice, Hints, to_u64, total_bytes};
use crate::error::{DeviceOp, Operation};
use crate::ram::RamDevice;

/// An operation that changed the device or made changes durable, or a note.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A write.
    Write {
        /// Where it began, in bytes.
        offset: u64,
        /// The bytes written.
        bytes: Arc<[u8]>,
        /// When the write is durable.
        durable: Durable,
    },
    /// A range was made to read as zeroes.
    WriteZeroes(Range<u64>),
    /// A range was discarded. Afterwards it reads as zeroes on this device.
    Discard(Range<u64>),
    /// A flush succeeded.
    Flush {
        /// The number of events that had completed when it began: these are durable.
        covers: usize,
    },
    /// A note of the test ([`RecordingDevice::note`]), which does not affect the device.
    Note(u64),
}

impl Event {
    /// Whether this is a flush.
    #[must_use]
    pub fn is_flush(&self) -> bool {
        matches!(self, Self::Flush { .. })
    }
}

/// When a write is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durable {
    /// After the next flush.
    AfterFlush,
    /// When the write completes.
    AtOnce,
}

/// The effect of a crash on a write that was not durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survival {
    /// All of it is on the device.
    Kept,
    /// Nothing of it is on the device.
    Lost,
    /// Only its first bytes are on the device.
    Torn {
        /// The number of these bytes.
        first_bytes: usize,
    },
}

/// A device that keeps a log of the operations that changed it.
#[derive(Debug)]
pub struct RecordingDevice {
    base: Arc<dyn BlockDevice>,
    events: Mutex<Vec<Event>>,
    /// The state after all events; read without the lock.
    now: RamDevice,
    /// How often a flush yields to other threads between its begin and its end.
    flush_yields: u32,
}

impl RecordingDevice {
    /// A device with the content of `base`, which is never written and must not change.
    #[must_use]
    pub fn new(base: Arc<dyn BlockDevice>) -> Self {
        let now = RamDevice::over(Arc::clone(&base));
        Self {
            base,
            events: Mutex::new(Vec::new()),
            now,
            flush_yields: 0,
        }
    }

    /// Makes each flush yield `times` times to other threads while it runs, as on a device with
    /// slow flushes.
    #[must_use]
    pub fn yielding_in_flushes(self, times: u32) -> Self {
        Self {
            flush_yields: times,
            ..self
        }
    }

    /// Adds `note` to the log. It is part of the log of every later cut.
    pub fn note(&self, note: u64) {
        self.events.lock().push(Event::Note(note));
    }

    /// The number of events; every number from 0 to this one is a cut.
    #[must_use]
    pub fn cuts(&self) -> usize {
        self.events.lock().len()
    }

    /// The events so far.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        self.events.lock().clone()
    }

    /// The device after the first `cut` events, all of which survived.
    ///
    /// # Errors
    /// Those of the base.
    pub fn as_of(&self, cut: usize) -> io::Result<RamDevice> {
        self.crashed(cut, |_, _| Survival::Kept)
    }

    /// The device after a crash after the first `cut` events. `survival_of` is called for each
    /// event that was not durable by then, with its index; it is not called for flushes and notes.
    ///
    /// # Errors
    /// Those of the base.
    pub fn crashed(
        &self,
        cut: usize,
        mut survival_of: impl FnMut(usize, &Event) -> Survival,
    ) -> io::Result<RamDevice> {
        let mut events = self.events();
        events.truncate(cut);
        let flushed = flushed_events(&events);
        let device = RamDevice::over(Arc::clone(&self.base));
        for (index, event) in events.iter().enumerate() {
            let durable = index < flushed
                || matches!(
                    event,
                    Event::Flush { .. }
                        | Event::Note(_)
                        | Event::Write {
                            durable: Durable::AtOnce,
                            ..
                        }
                );
            let survival = if durable {
                Survival::Kept
            } else {
                survival_of(index, event)
            };
            apply(&device, event, survival)?;
        }
        Ok(device)
    }

    /// Applies an event to the state and logs it, as one step.
    fn record(&self, event: Event) -> io::Result<()> {
        let mut events = self.events.lock();
        apply(&self.now, &event, Survival::Kept)?;
        events.push(event);
        Ok(())
    }

    fn write(&self, bufs: &[IoSlice<'_>], offset: u64, durable: Durable) -> io::Result<()> {
        Operation::new(DeviceOp::Write, offset, total_bytes(bufs))
            .check_inside(self.len_bytes())?;
        let bytes: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).collect();
        self.record(Event::Write {
            offset,
            bytes: bytes.into(),
            durable,
        })
    }
}

/// The number of events, from the first on, that the flushes among them made durable.
fn flushed_events(events: &[Event]) -> usize {
    let covers = |event: &Event| match event {
        Event::Flush { covers } => Some(*covers),
        _ => None,
    };
    events.iter().filter_map(covers).max().unwrap_or(0)
}

/// Applies the surviving part of `event` to `device`.
fn apply(device: &RamDevice, event: &Event, survival: Survival) -> io::Result<()> {
    let first_bytes = match survival {
        Survival::Kept => usize::MAX,
        Survival::Lost => 0,
        Survival::Torn { first_bytes } => first_bytes,
    };
    let cut = |range: &Range<u64>| {
        range.start
            ..range
                .end
                .min(range.start.saturating_add(to_u64(first_bytes)))
    };
    match event {
        Event::Write { offset, bytes, .. } => {
            device.write_at(&bytes[..bytes.len().min(first_bytes)], *offset)
        }
        Event::WriteZeroes(range) | Event::Discard(range) => device.write_zeroes(cut(range)),
        Event::Flush { .. } | Event::Note(_) => Ok(()),
    }
}

impl BlockDevice for RecordingDevice {
    fn len_bytes(&self) -> u64 {
        self.base.len_bytes()
    }

    fn hints(&self) -> Hints {
        Hints {
            read_only: false,
            discard: true,
            ..self.base.hints()
        }
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        self.now.read_vectored_at(bufs, offset)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.write(bufs, offset, Durable::AfterFlush)
    }

    fn write_fua(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.write(bufs, offset, Durable::AtOnce)
    }

    fn flush(&self) -> io::Result<()> {
        let covers = self.cuts();
        for _ in 0..self.flush_yields {
            thread::yield_now();
        }
        self.record(Event::Flush { covers })
    }

    fn discard(&self, range: Range<u64>) -> io::Result<()> {
        Operation::on_range(DeviceOp::Discard, &range).check_inside(self.len_bytes())?;
        self.record(Event::Discard(range))
    }

    fn write_zeroes(&self, range: Range<u64>) -> io::Result<()> {
        Operation::on_range(DeviceOp::WriteZeroes, &range).check_inside(self.len_bytes())?;
        self.record(Event::WriteZeroes(range))
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    fn content(device: &dyn BlockDevice) -> String {
        let mut bytes = [0; 6];
        device.read_at(&mut bytes, 0).expect("read");
        bytes
            .iter()
            .map(|&byte| if byte == 0 { '.' } else { char::from(byte) })
            .collect()
    }

    /// The example of the module's head: `w1 w2 F w3 w4f w5`.
    fn example() -> RecordingDevice {
        let base = Arc::new(RamDevice::from_bytes(b"abcdef"));
        let device = RecordingDevice::new(base);
        device.write_at(b"1", 0).expect("write");
        device.write_at(b"22", 1).expect("write");
        device.flush().expect("flush");
        device.write_at(b"333", 2).expect("write");
        device
            .write_fua(&[IoSlice::new(b"4"), IoSlice::new(b"5")], 4)
            .expect("write");
        device.discard(0..1).expect("discard");
        device
    }

    #[test]
    fn every_cut_is_the_state_at_that_moment() {
        let device = example();
        assert_eq!(device.cuts(), 6);
        let states: Vec<String> = (0..=6)
            .map(|cut| content(&device.as_of(cut).expect("in memory")))
            .collect();
        let expected = [
            "abcdef", "1bcdef", "122def", "122def", "12333f", "123345", ".23345",
        ];
        assert_eq!(states, expected);
        assert_eq!(content(&device), ".23345");
        assert_eq!(
            content(&*device.base),
            "abcdef",
            "the base is never written"
        );
    }

    #[test]
    fn only_writes_that_were_not_durable_can_be_lost_or_torn() {
        let device = example();
        let mut calls = Vec::new();
        let lost = device.crashed(6, |index, _| {
            calls.push(index);
            Survival::Lost
        });
        assert_eq!(
            content(&lost.expect("in memory")),
            "122d45",
            "all but the flushed and FUA"
        );
        assert_eq!(calls, [3, 5]);
        let torn = device.crashed(5, |_, _| Survival::Torn { first_bytes: 2 });
        assert_eq!(content(&torn.expect("in memory")), "123345");
        let torn = device.crashed(2, |index, _| match index {
            0 => Survival::Lost,
            _ => Survival::Torn { first_bytes: 1 },
        });
        assert_eq!(content(&torn.expect("in memory")), "a2cdef");
    }

    #[test]
    fn a_flush_covers_the_events_that_completed_before_it_began() {
        let device = example();
        let mut events = device.events();
        assert_eq!((events[2].is_flush(), flushed_events(&events)), (true, 2));
        events[2] = Event::Flush { covers: 1 };
        assert_eq!(
            flushed_events(&events),
            1,
            "the second write completed during the flush"
        );
        *device.events.lock() = events;
        device.note(7);
        let mut calls = Vec::new();
        let lost = device.crashed(7, |index, _| {
            calls.push(index);
            Survival::Lost
        });
        assert_eq!(content(&lost.expect("in memory")), "1bcd45");
        assert_eq!(calls, [1, 3, 5], "neither flush nor note");
        assert_eq!(device.events().last(), Some(&Event::Note(7)));
    }

    #[test]
    fn writes_can_complete_during_a_flush() {
        let base = Arc::new(RamDevice::from_bytes(b"abcdef"));
        let device = RecordingDevice::new(base).yielding_in_flushes(50);
        let uncovered = |events: &[Event]| {
            events
                .iter()
                .enumerate()
                .any(|(index, event)| matches!(event, Event::Flush { covers } if *covers < index))
        };
        thread::scope(|scope| {
            let flusher = scope.spawn(|| {
                while !uncovered(&device.events()) {
                    device.flush().expect("flush");
                }
            });
            while !flusher.is_finished() {
                device.write_at(b"x", 0).expect("write");
                thread::yield_now();
            }
        });
        assert!(uncovered(&device.events()));
    }

    #[test]
    fn a_refused_write_is_not_in_the_log() {
        let device = example();
        assert!(device.write_at(b"xx", 5).is_err());
        assert!(device.write_zeroes(0..7).is_err());
        assert_eq!((device.cuts(), device.events().len()), (6, 6));
        assert_eq!(device.events()[5], Event::Discard(0..1));
    }
}
