//! **Purpose.** Model-checked tests of running out of space, and of waiting for space that is
//! coming. In the model no wait times out, so a lost wake-up is a deadlock.

use std::time::{Duration, Instant};

use super::*;

/// An injected fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// The waiter is woken before the state changes.
    EarlyWake,
    /// The waiter reads the state before it registers.
    LateListening,
    /// Tokens are counted before the clusters that become tokens.
    TokensFirst,
}

impl Fault {
    /// The number of interleavings to run. A run with a fault ends as soon as the fault is found,
    /// for which twice 400 interleavings were not always enough.
    fn schedules(self) -> usize {
        match self {
            Self::None => SCHEDULES,
            _ => 100 * SCHEDULES,
        }
    }
}

/// All clusters are freed and wait for a grace period; one thread needs them, the other is the last
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
                Fault::EarlyWake => {
                    shared.waiter.wake();
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
            let completed = allocator.discards_completed();
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
                    allocator.wait_for_grace_period(STAMP, completed, far, || true);
                }
            }
        }
        allocator.stop_listening();
        reader.join().unwrap();
        small.settle();
    });
}

#[test]
fn a_thread_that_waits_for_a_grace_period_is_woken() {
    sleep_and_wake(Fault::None);
}

#[test]
#[should_panic(expected = "deadlock")]
fn an_early_wake_up_is_found() {
    sleep_and_wake(Fault::EarlyWake);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_waiter_that_registers_late_is_found() {
    sleep_and_wake(Fault::LateListening);
}

impl Small {
    /// Reserves as much as this thread has just freed: there is always space for that.
    fn reserve_again(&self, fault: Fault) {
        let (allocator, wanted) = (&self.allocator, 20);
        loop {
            let core = CoreNr::current();
            let refused = match fault {
                Fault::TokensFirst => {
                    let shared = &allocator.table().shared;
                    let taken = shared.tokens.take(core, wanted, Privilege::User);
                    let is_none_coming = || allocator.table().becoming_free().clusters == 0;
                    taken.map_err(|_| is_none_coming())
                }
                _ => allocator
                    .reserve(wanted, Privilege::User)
                    .map_err(|error| matches!(error, Error::NoSpace { .. })),
            };
            match refused {
                Ok(reserved) => return allocator.unreserve(reserved),
                Err(is_final) => assert!(!is_final, "refused although there is space"),
            }
            // As a commit does.
            allocator.set_durable(Tid(2));
            allocator.sweep();
        }
    }
}

/// Two threads that hold all clusters between them free theirs, and reserve as many again.
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
fn no_request_fails_while_enough_clusters_become_free() {
    free_and_reserve(Fault::None);
}

#[test]
#[should_panic(expected = "refused although there is space")]
fn counting_tokens_before_the_clusters_becoming_free_is_found() {
    free_and_reserve(Fault::TokensFirst);
}

#[test]
fn tokens_kept_for_one_thread_are_neither_lost_nor_fail_another() {
    check(SCHEDULES, || {
        let small = Small::new();
        on_threads(&small, 2, |small, t| {
            let allocator = &small.allocator;
            let favoured = (t == 0).then(|| thread::current().id());
            if favoured.is_some() {
                allocator.favour(favoured);
            }
            // There is space for both.
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
