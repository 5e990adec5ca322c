//! **Purpose.** Being refused space, and waiting for space that is coming, in many orders of the
//! threads' steps. In the model no sleep ends by itself, so a lost wake-up is a deadlock.

use std::time::{Duration, Instant};

use super::*;

/// What is done wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// The bell is rung before what it tells of.
    EarlyRing,
    /// The sleeper looks before it listens.
    LateListening,
    /// Tokens are counted before the clusters that become tokens.
    TokensFirst,
}

impl Fault {
    /// In how many orders the steps are run. With a fault that ends as soon as it is found, which
    /// twice 400 orders did not always do.
    fn schedules(self) -> usize {
        match self {
            Self::None => SCHEDULES,
            _ => 100 * SCHEDULES,
        }
    }
}

/// All clusters are freed, and wait for readers; one thread needs them, the other is the last
/// reader.
fn sleep_and_wake(fault: Fault) {
    const STAMP: Stamp = Stamp(3);
    check(fault.schedules(), move || {
        let small = Small::new();
        for logical in [0, 24] {
            let run = small.get(logical, 24, Sizing::Exact, Tid(1)).unwrap();
            let freeing = small.allocator.begin_free(run).unwrap();
            small.disk.apply(freeing.change());
            small.allocator.finish_free(freeing, Tid(1), STAMP);
        }
        let reader = Arc::clone(&small);
        let reader = thread::spawn(move || {
            let shared = &reader.allocator.table().shared;
            match fault {
                Fault::EarlyRing => {
                    shared.bell.ring();
                    shared.clocks.end_grace_period(STAMP);
                }
                _ => reader.allocator.end_grace_period(STAMP),
            }
        });
        let allocator = &small.allocator;
        while let Err(refused) = allocator.reserve(30, Privilege::User).map(|reserved| {
            allocator.unreserve(reserved);
        }) {
            assert!(
                matches!(refused, Error::CommitFirst { tid: None, .. }),
                "{refused}"
            );
            let told = allocator.told();
            let far = Instant::now() + Duration::from_secs(3600);
            match fault {
                Fault::LateListening => {
                    if !allocator.table().shared.clocks.has_ended(STAMP) {
                        allocator.listen();
                        thread::park();
                    }
                }
                _ => {
                    allocator.listen();
                    allocator.wait_for_grace_period(STAMP, told, far, || true);
                }
            }
        }
        allocator.stop_listening();
        reader.join().unwrap();
        small.settle();
    });
}

#[test]
fn whoever_sleeps_for_readers_is_woken() {
    sleep_and_wake(Fault::None);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_bell_that_is_rung_early_is_found() {
    sleep_and_wake(Fault::EarlyRing);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_sleeper_that_listens_late_is_found() {
    sleep_and_wake(Fault::LateListening);
}

impl Small {
    /// Reserves what this thread has just freed: there is always room for that.
    fn reserve_again(&self, fault: Fault) {
        let (allocator, wanted) = (&self.allocator, 20);
        loop {
            let core = CoreNr::current();
            let refused = match fault {
                Fault::TokensFirst => {
                    let shared = &allocator.table().shared;
                    let taken = shared.tokens.take(core, wanted, Privilege::User);
                    let is_none_coming = || allocator.table().on_the_way().clusters == 0;
                    taken.map_err(|_| is_none_coming())
                }
                _ => allocator
                    .reserve(wanted, Privilege::User)
                    .map_err(|error| matches!(error, Error::NoSpace { .. })),
            };
            match refused {
                Ok(reserved) => return allocator.unreserve(reserved),
                Err(is_final) => assert!(!is_final, "told that there is no space"),
            }
            // As a commit does.
            allocator.set_durable(Tid(2));
            allocator.sweep();
        }
    }
}

/// Two threads that have all clusters between them free theirs, and need as many again.
fn free_and_reserve(fault: Fault) {
    check(fault.schedules(), move || {
        let small = Small::new();
        let runs = [0, 24].map(|logical| small.get(logical, 24, Sizing::Exact, Tid(1)).unwrap());
        let threads = runs.map(|run| {
            let small = Arc::clone(&small);
            thread::spawn(move || {
                small.put(run, Tid(2));
                small.reserve_again(fault);
            })
        });
        for thread in threads {
            thread.join().unwrap();
        }
        small.settle();
    });
}

#[test]
fn nobody_is_refused_what_is_coming() {
    free_and_reserve(Fault::None);
}

#[test]
#[should_panic(expected = "told that there is no space")]
fn counting_tokens_before_what_becomes_one_is_found() {
    free_and_reserve(Fault::TokensFirst);
}

#[test]
fn what_is_kept_for_one_thread_is_neither_lost_nor_refused_to_another() {
    check(SCHEDULES, || {
        let small = Small::new();
        on_threads(&small, 2, |small, t| {
            let allocator = &small.allocator;
            let favoured = (t == 0).then(|| thread::current().id());
            if favoured.is_some() {
                allocator.favour(favoured);
            }
            // Both fit beside each other.
            match allocator.reserve([40, 8][t as usize], Privilege::User) {
                Ok(reserved) => allocator.unreserve(reserved),
                Err(error) => assert!(matches!(error, Error::CommitFirst { .. }), "{error}"),
            }
            if favoured.is_some() {
                allocator.favour(None);
            }
        });
        assert_eq!(small.allocator.free_clusters(), 48);
        small.settle();
    });
}
