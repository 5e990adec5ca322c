//! **Purpose.** A progress bar for work over a second, on a terminal only.
//!
//! **Locking.** Workers count on their own core; a thread of its own reads the sum ten times a
//! second and draws.

use std::io::{IsTerminal, stderr, stdout};
use std::time::Duration;

use fourscore_sync::{Arc, Condvar, Counter, Mutex, thread};
use indicatif::{ProgressBar, ProgressStyle};

/// How long work is silent.
const SILENT: Duration = Duration::from_secs(1);
const REDRAW: Duration = Duration::from_millis(100);

/// Counts work and shows it until it is dropped.
pub(crate) struct Progress {
    shared: Arc<Shared>,
    drawer: Option<thread::JoinHandle<()>>,
}

struct Shared {
    done: Counter,
    stopped: Mutex<bool>,
    stop: Condvar,
}

impl Progress {
    /// Starts counting towards `total` objects.
    pub(crate) fn of_objects(total: u64) -> Self {
        Self::new(Some(total), stderr().is_terminal())
    }

    /// As [`Progress::of_objects`], for work that prints, towards a total if anybody knows it: on
    /// a terminal that shows the output too there is no bar, which would tear its lines.
    pub(crate) fn beside_output(total: Option<u64>) -> Self {
        Self::new(total, stderr().is_terminal() && !stdout().is_terminal())
    }

    fn new(total: Option<u64>, shown: bool) -> Self {
        let shared = Arc::new(Shared {
            done: Counter::default(),
            stopped: Mutex::new(false),
            stop: Condvar::new(),
        });
        let drawer = shown.then(|| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.draw(total))
        });
        Self { shared, drawer }
    }

    /// Notes that `count` more objects are done.
    pub(crate) fn add(&self, count: usize) {
        self.shared.done.add(count as u64);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        *self.shared.stopped.lock() = true;
        self.shared.stop.notify_all();
        if let Some(drawer) = self.drawer.take() {
            // Whatever happened to the bar, the work is done.
            let _ = drawer.join();
        }
    }
}

impl Shared {
    fn draw(&self, total: Option<u64>) {
        if self.stopped_within(SILENT) {
            return;
        }
        let (bar, template) = match total {
            Some(total) => (
                ProgressBar::new(total),
                "{bar:40} {pos}/{len} objects, {eta} left",
            ),
            None => (ProgressBar::no_length(), "{pos} objects in {elapsed}"),
        };
        let style = ProgressStyle::with_template(template);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        while !self.stopped_within(REDRAW) {
            bar.set_position(self.done.sum().min(total.unwrap_or(u64::MAX)));
        }
        bar.finish_and_clear();
    }

    fn stopped_within(&self, time: Duration) -> bool {
        let mut stopped = self.stopped.lock();
        if !*stopped {
            self.stop.wait_for(&mut stopped, time);
        }
        *stopped
    }
}
