//! **Purpose.** Growths of the file system by drawn sizes.

use std::time::Duration;

use fourscore_sync::thread;

use super::super::call::Call;
use super::super::target::Target;
use super::{Worker, number};

/// The longest pause before a growth, in milliseconds: others work meanwhile.
const PAUSE_MILLIS: usize = 25;

impl<T: Target> Worker<'_, T> {
    /// Grows the file system by a part of what the device has left, or asks for what is refused.
    pub(super) fn grow_fs(&mut self) {
        thread::sleep(Duration::from_millis(self.random.below(PAUSE_MILLIS) as u64));
        let wish = self.wish();
        self.note(Call::GrowFs(wish), |shared| {
            number(shared.target.grow_fs(wish))
        });
    }

    /// A size in blocks.
    fn wish(&mut self) -> u64 {
        let device = self.shared.shape.device_blocks();
        let group = self.shared.group_blocks;
        let now = self.shared.target.fs_blocks();
        let left = device.saturating_sub(now);
        let mut below = |end: u64| {
            let end = usize::try_from(end.max(1)).unwrap_or(usize::MAX);
            self.random.below(end) as u64
        };
        match below(16) {
            // Refused: smaller, or beyond the device or the format.
            0 => now - 1 - below(now / 2),
            1 => device + group + below(now),
            2 => 1 << 50,
            // As it is.
            3 => now,
            // Some blocks: mostly within the last group.
            4..8 => now + 1 + below(left.min(64)),
            // About the end of the last group.
            8..10 => (now + group - now % group + below(3))
                .saturating_sub(1)
                .min(device),
            // Several groups, in one piece or more.
            10..15 => now + below(left / 12),
            _ if below(6) == 0 => device,
            _ => now + below(left / 2),
        }
    }
}
