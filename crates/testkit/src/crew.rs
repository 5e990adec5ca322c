//! **Purpose.** Pieces of work on all cores, one after the other by their numbers, under a watch.
//!
//! **Model.** Each thread takes the next number as long as its piece is wanted, and does that piece
//! as a whole or not at all; so what was done is told by the first number that was not begun, and
//! by the sum of what the pieces were. Work whose threads wait for each other never ends, and
//! neither does a loop that goes round in circles: the caller's thread keeps watch over how long
//! each part of a piece takes, and reports one that is overdue. Its threads cannot be stopped and
//! stay behind.
//!
//! **Locking.** One lock for who does what, one for what is being done since when; neither is held
//! while anything is done, nor while the other is taken.

use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::time::{Duration, Instant};

use anyhow::{Error, anyhow};
use fourscore_sync::{Arc, Condvar, Mutex, thread};

/// How often the watch looks for what is overdue.
const WATCH_INTERVAL: Duration = Duration::from_millis(200);

/// What a crew does.
pub trait Work: Send + Sync + 'static {
    /// What the watch is told of: a piece, or a part of one.
    type Part: Copy + Send;
    /// What was done, in one piece or in many.
    type Done: Default + AddAssign + Send;
    /// What ends the work early.
    type Finding: Send;

    /// Whether the piece with this number is not wanted any more, nor any behind it, when so much
    /// is done.
    fn is_enough(&self, number: u64, done: &Self::Done) -> bool;

    /// Does a piece.
    ///
    /// # Errors
    /// What was found; no piece is begun after that.
    fn piece(
        &self,
        number: u64,
        watch: &Watch<'_, Self::Part>,
    ) -> Result<Self::Done, Self::Finding>;

    /// What is found if a part does not end, which is the error.
    fn overdue(&self, part: Self::Part, error: Error) -> Self::Finding;
}

/// Those who do it.
#[derive(Clone, Copy, Debug)]
pub struct Crew {
    /// The number of the first piece.
    pub first: u64,
    /// How many threads work.
    pub threads: usize,
    /// How long a part may take.
    pub patience: Duration,
}

/// Who is told what a thread does.
pub struct Watch<'s, P> {
    begun: &'s Mutex<BTreeMap<u64, (P, Instant)>>,
    number: u64,
}

impl<P> Watch<'_, P> {
    /// A part begins, and the one before it has ended.
    pub fn begins(&self, part: P) {
        let mut begun = self.begun.lock();
        begun.insert(self.number, (part, Instant::now()));
    }
}

/// What the threads share.
struct Shared<W: Work> {
    work: W,
    progress: Mutex<Progress<W>>,
    /// By the number of the piece: the part that is being done, and since when.
    begun: Mutex<BTreeMap<u64, (W::Part, Instant)>>,
    /// A thread has ended.
    ended: Condvar,
}

struct Progress<W: Work> {
    next: u64,
    done: W::Done,
    finding: Option<W::Finding>,
    is_over: bool,
    /// How many threads have not ended.
    at_work: usize,
    has_panicked: bool,
}

impl Crew {
    /// Works until it is enough; gives the first number that was not begun, and what was done.
    ///
    /// # Errors
    /// The first thing that was found.
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
            self.begun.lock().remove(&number);
            let mut progress = self.progress.lock();
            match result {
                Ok(done) => progress.done += done,
                Err(finding) => {
                    progress.is_over = true;
                    progress.finding.get_or_insert(finding);
                }
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

    /// Waits until all threads have ended, or something was found or takes too long.
    fn watch(&self, patience: Duration) -> Result<(u64, W::Done), W::Finding> {
        loop {
            let mut progress = self.progress.lock();
            if let Some(finding) = progress.finding.take() {
                return Err(finding);
            }
            assert!(!progress.has_panicked, "a thread of the crew has panicked");
            if progress.at_work == 0 {
                return Ok((progress.next, std::mem::take(&mut progress.done)));
            }
            self.ended.wait_for(&mut progress, WATCH_INTERVAL);
            drop(progress);
            if let Some(part) = self.overdue(patience) {
                self.progress.lock().is_over = true;
                let error = anyhow!("no end after {patience:?}: somebody waits for ever");
                return Err(self.work.overdue(part, error));
            }
        }
    }

    /// A part that does not end.
    fn overdue(&self, patience: Duration) -> Option<W::Part> {
        let begun = self.begun.lock();
        let mut parts = begun.values();
        parts
            .find(|(_, since)| since.elapsed() > patience)
            .map(|&(part, _)| part)
    }
}

/// Notes when dropped that a thread has ended, in whichever way.
struct Ended<'s, W: Work>(&'s Shared<W>);

impl<W: Work> Drop for Ended<'_, W> {
    fn drop(&mut self) {
        let mut progress = self.0.progress.lock();
        progress.at_work -= 1;
        progress.has_panicked |= thread::panicking();
        drop(progress);
        self.0.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten pieces; one may be bad, one may never end.
    #[derive(Default)]
    struct Ten {
        bad: Option<u64>,
        endless: Option<u64>,
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
            Ok(Numbers(vec![number]))
        }

        fn overdue(&self, part: u64, error: Error) -> String {
            format!("{part}: {error}")
        }
    }

    fn crew(first: u64, patience: Duration) -> Crew {
        Crew {
            first,
            threads: 2,
            patience,
        }
    }

    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn each_piece_is_done_once() {
        let (next, Numbers(mut done)) = crew(3, LONG).run(Ten::default()).ok().unwrap();
        done.sort_unstable();
        assert_eq!((next, done), (10, vec![3, 4, 5, 6, 7, 8, 9]));
    }

    #[test]
    fn what_was_done_says_when_it_is_enough() {
        let (next, Numbers(done)) = crew(0, LONG).run(Ten::default()).ok().unwrap();
        // Of two threads one may have begun another piece before the eighth was done.
        assert!(
            done.len() as u64 == next && (8..=9).contains(&next),
            "{next}: {done:?}"
        );
    }

    #[test]
    fn what_is_found_and_what_does_not_end_is_told() {
        let bad = Ten {
            bad: Some(5),
            ..Ten::default()
        };
        assert_eq!(crew(3, LONG).run(bad).err().unwrap(), "5 is bad");
        let endless = Ten {
            endless: Some(9),
            ..Ten::default()
        };
        // Nothing else is begun that could take long on a busy machine.
        let found = crew(9, Duration::from_millis(50)).run(endless);
        assert_eq!(
            found.err().unwrap(),
            "9: no end after 50ms: somebody waits for ever"
        );
    }
}
