//! **Purpose.** A worker pool with a watchdog: numbered pieces of work on all cores.
//!
//! **Model.** Each worker takes the next number while more pieces are needed, and finishes every
//! piece that it takes. So the first number that was not taken, and the sum of the results,
//! describe the progress. A deadlock or an endless loop never ends: the calling thread measures the
//! time of each part of a piece and reports an overdue one. Its threads cannot be stopped and are
//! left running.
//!
//! A finding is returned when the other workers have finished their pieces too. If the process
//! ended earlier, it would leave behind what they hold: temporary folders, and images that the
//! kernel has mounted. The pool does not wait for overdue parts, and for others no longer than
//! [`LAST_PIECES`].
//!
//! **Locking.** One lock guards the progress, another one the parts that are running and their
//! start times. Neither is held during work or while the other is taken.

use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::time::{Duration, Instant};

use anyhow::{Error, anyhow};
use fourscore_sync::{Arc, Condvar, Mutex, thread};

/// The interval at which the watchdog looks for overdue parts.
const WATCH_INTERVAL: Duration = Duration::from_millis(200);

/// The longest time for which a finding is kept back until the other workers have finished their
/// pieces: much longer than most pieces take.
const LAST_PIECES: Duration = Duration::from_secs(20);

/// The work of a pool.
pub trait Work: Send + Sync + 'static {
    /// What the watchdog measures: a piece, or a part of one.
    type Part: Copy + Send;
    /// The result of one piece, or the sum of several.
    type Done: Default + AddAssign + Send;
    /// A result that ends the work early.
    type Finding: Send;

    /// Whether neither the piece with this number nor any later one is needed, given what is done.
    fn is_enough(&self, number: u64, done: &Self::Done) -> bool;

    /// Does a piece.
    ///
    /// # Errors
    /// A finding; no piece is begun after it.
    fn piece(
        &self,
        number: u64,
        watch: &Watch<'_, Self::Part>,
    ) -> Result<Self::Done, Self::Finding>;

    /// Makes a finding of a part that does not end; `error` says so.
    fn overdue(&self, part: Self::Part, error: Error) -> Self::Finding;
}

/// A worker pool.
#[derive(Clone, Copy, Debug)]
pub struct WorkerPool {
    /// The number of the first piece.
    pub first: u64,
    /// The number of threads.
    pub threads: usize,
    /// The longest time for a part.
    pub patience: Duration,
}

/// The watchdog's view of one thread.
pub struct Watch<'s, P> {
    begun: &'s Mutex<BTreeMap<u64, (P, Instant)>>,
    number: u64,
}

impl<P> Watch<'_, P> {
    /// Starts a part, and ends the previous one.
    pub fn begins(&self, part: P) {
        let mut begun = self.begun.lock();
        begun.insert(self.number, (part, Instant::now()));
    }
}

impl<P> Drop for Watch<'_, P> {
    fn drop(&mut self) {
        self.begun.lock().remove(&self.number);
    }
}

/// The state that the threads share.
struct Shared<W: Work> {
    work: W,
    progress: Mutex<Progress<W>>,
    /// The running part of each piece, with its start time.
    begun: Mutex<BTreeMap<u64, (W::Part, Instant)>>,
    /// A thread has ended.
    ended: Condvar,
}

struct Progress<W: Work> {
    next: u64,
    done: W::Done,
    finding: Option<W::Finding>,
    /// There is a finding, or a thread has panicked.
    is_over: bool,
    /// The number of threads that have not ended.
    at_work: usize,
    has_panicked: bool,
}

impl WorkerPool {
    /// Works until [`Work::is_enough`]. Returns the first number that was not taken, and the sum of
    /// the results.
    ///
    /// # Errors
    /// The first finding.
    ///
    /// # Panics
    /// If one of the threads does.
    pub fn run<W: Work>(&self, work: W) -> Result<(u64, W::Done), W::Finding> {
        let shared = Arc::new(Shared {
            work,
            progress: Mutex::new(Progress {
                next: self.first,
                done: W::Done::default(),
                finding: None,
                is_over: false,
                at_work: self.threads,
                has_panicked: false,
            }),
            begun: Mutex::new(BTreeMap::new()),
            ended: Condvar::new(),
        });
        for _ in 0..self.threads {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.pieces());
        }
        shared.watch(self.patience)
    }
}

impl<W: Work> Shared<W> {
    fn pieces(&self) {
        let _ended = Ended(self);
        while let Some(number) = self.next() {
            let watch = Watch {
                begun: &self.begun,
                number,
            };
            let result = self.work.piece(number, &watch);
            drop(watch);
            let mut progress = self.progress.lock();
            match result {
                Ok(done) => progress.done += done,
                Err(finding) => progress.ends_with(finding),
            }
        }
    }

    fn next(&self) -> Option<u64> {
        let mut progress = self.progress.lock();
        let number = progress.next;
        if progress.is_over || self.work.is_enough(number, &progress.done) {
            return None;
        }
        progress.next += 1;
        Some(number)
    }

    /// Waits until all threads have ended except those with an overdue part, after a finding or a
    /// panic at most [`LAST_PIECES`].
    fn watch(&self, patience: Duration) -> Result<(u64, W::Done), W::Finding> {
        let mut until = None;
        loop {
            let overdue = self.overdue(patience);
            let mut progress = self.progress.lock();
            if let Some(&part) = overdue.first() {
                let error = anyhow!("no end after {patience:?}: a deadlock or an endless loop");
                progress.ends_with(self.work.overdue(part, error));
            }
            let now = Instant::now();
            if progress.is_over {
                until.get_or_insert(now + LAST_PIECES);
            }
            if progress.at_work <= overdue.len() || until.is_some_and(|until| now > until) {
                return progress.result();
            }
            self.ended.wait_for(&mut progress, WATCH_INTERVAL);
        }
    }

    /// The overdue parts.
    fn overdue(&self, patience: Duration) -> Vec<W::Part> {
        let begun = self.begun.lock();
        let overdue = begun
            .values()
            .filter(|(_, since)| since.elapsed() > patience);
        overdue.map(|&(part, _)| part).collect()
    }
}

impl<W: Work> Progress<W> {
    /// Records a finding, if it is the first. No piece is begun after it.
    fn ends_with(&mut self, finding: W::Finding) {
        self.is_over = true;
        self.finding.get_or_insert(finding);
    }

    fn result(&mut self) -> Result<(u64, W::Done), W::Finding> {
        if let Some(finding) = self.finding.take() {
            return Err(finding);
        }
        assert!(!self.has_panicked, "a worker has panicked");
        Ok((self.next, std::mem::take(&mut self.done)))
    }
}

/// Notes on drop that a thread has ended, also by a panic.
struct Ended<'s, W: Work>(&'s Shared<W>);

impl<W: Work> Drop for Ended<'_, W> {
    fn drop(&mut self) {
        let mut progress = self.0.progress.lock();
        progress.at_work -= 1;
        if thread::panicking() {
            progress.is_over = true;
            progress.has_panicked = true;
        }
        drop(progress);
        self.0.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use fourscore_sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Ten pieces; one may be bad, one may never end, one may take long and set a flag at its end.
    #[derive(Default)]
    struct Ten {
        bad: Option<u64>,
        endless: Option<u64>,
        slow: Option<(u64, Arc<AtomicBool>)>,
    }

    #[derive(Default)]
    struct Numbers(Vec<u64>);

    impl AddAssign for Numbers {
        fn add_assign(&mut self, more: Self) {
            self.0.extend(more.0);
        }
    }

    impl Work for Ten {
        type Part = u64;
        type Done = Numbers;
        type Finding = String;

        fn is_enough(&self, number: u64, done: &Numbers) -> bool {
            number >= 10 || done.0.len() >= 8
        }

        fn piece(&self, number: u64, watch: &Watch<'_, u64>) -> Result<Numbers, String> {
            watch.begins(number);
            if self.bad == Some(number) {
                return Err(format!("{number} is bad"));
            }
            while self.endless == Some(number) {
                thread::sleep(Duration::from_millis(1));
            }
            if let Some((slow, has_ended)) = &self.slow
                && *slow == number
            {
                thread::sleep(Duration::from_millis(300));
                has_ended.store(true, Ordering::SeqCst);
            }
            Ok(Numbers(vec![number]))
        }

        fn overdue(&self, part: u64, error: Error) -> String {
            format!("{part}: {error}")
        }
    }

    fn worker_pool(first: u64, patience: Duration) -> WorkerPool {
        WorkerPool {
            first,
            threads: 2,
            patience,
        }
    }

    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn each_piece_is_done_once() {
        let (next, Numbers(mut done)) = worker_pool(3, LONG).run(Ten::default()).ok().unwrap();
        done.sort_unstable();
        assert_eq!((next, done), (10, vec![3, 4, 5, 6, 7, 8, 9]));
    }

    #[test]
    fn the_results_decide_when_it_is_enough() {
        let (next, Numbers(done)) = worker_pool(0, LONG).run(Ten::default()).ok().unwrap();
        // Of two threads one may have begun another piece before the eighth was done.
        assert!(
            done.len() as u64 == next && (8..=9).contains(&next),
            "{next}: {done:?}"
        );
    }

    #[test]
    fn findings_and_overdue_parts_are_reported() {
        let bad = Ten {
            bad: Some(5),
            ..Ten::default()
        };
        assert_eq!(worker_pool(3, LONG).run(bad).err().unwrap(), "5 is bad");
        let endless = Ten {
            endless: Some(9),
            ..Ten::default()
        };
        // Nothing else is begun that could take long on a busy machine.
        let found = worker_pool(9, Duration::from_millis(50)).run(endless);
        assert_eq!(
            found.err().unwrap(),
            "9: no end after 50ms: a deadlock or an endless loop"
        );
    }
    /// What the other workers hold is dropped before the process can end.
    #[test]
    fn a_finding_is_returned_after_the_pieces_that_others_have_begun() {
        let has_ended = Arc::new(AtomicBool::new(false));
        let work = Ten {
            bad: Some(4),
            slow: Some((3, Arc::clone(&has_ended))),
            ..Ten::default()
        };
        assert_eq!(worker_pool(3, LONG).run(work).err().unwrap(), "4 is bad");
        assert!(has_ended.load(Ordering::SeqCst));
    }

    /// With a worker that never ends, a finding of another one is not kept back for long.
    #[test]
    fn a_finding_does_not_wait_for_overdue_parts() {
        let work = Ten {
            bad: Some(4),
            endless: Some(3),
            ..Ten::default()
        };
        let begun = Instant::now();
        let found = worker_pool(3, Duration::from_millis(50)).run(work);
        assert_eq!(found.err().unwrap(), "4 is bad");
        assert!(begun.elapsed() < LAST_PIECES);
    }
}
