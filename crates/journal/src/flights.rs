//! **Purpose.** Batches of one device that are in flight while their owner prepares the next ones.

use std::collections::VecDeque;
use std::io;
use std::mem;

use fourscore_block::{Batch, BlockDevice, InFlight, Poll};
use fourscore_sync::Arc;

/// A batch of this many bytes is submitted: it stays in a core's cache from the checksums to the
/// copy that the device makes.
pub(crate) const BATCH_BYTES: usize = 256 << 10;
/// The most batches in flight; more would not keep a device busier.
const MAX_FLIGHTS: usize = 4;

/// A bounded number of batches in flight.
#[derive(Debug)]
pub(crate) struct Flights {
    device: Arc<dyn BlockDevice>,
    in_flight: VecDeque<InFlight>,
}

impl Flights {
    /// None yet, of `device`.
    pub(crate) fn of(device: &Arc<dyn BlockDevice>) -> Self {
        Self {
            device: Arc::clone(device),
            in_flight: VecDeque::with_capacity(MAX_FLIGHTS),
        }
    }

    /// Submits a batch, after the oldest one has ended if there are too many.
    ///
    /// # Errors
    /// A request of this batch or of the oldest one failed.
    pub(crate) fn submit(&mut self, batch: Batch) -> io::Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        if self.in_flight.len() == MAX_FLIGHTS
            && let Some(oldest) = self.in_flight.pop_front()
        {
            oldest.wait_all_ok()?;
        }
        let mut flight = self.device.submit(batch);
        if flight.poll() == Poll::Ended {
            // A device in memory or without a queue has completed it already.
            return flight.wait_all_ok().map(drop);
        }
        self.in_flight.push_back(flight);
        Ok(())
    }

    /// Waits until all have ended.
    ///
    /// # Errors
    /// A request failed.
    pub(crate) fn wait(&mut self) -> io::Result<()> {
        for flight in mem::take(&mut self.in_flight) {
            flight.wait_all_ok()?;
        }
        Ok(())
    }
}
