//! Tests of the tokens.

use fourscore_sync::thread;

use super::*;

fn core() -> CoreNr {
    CoreNr::current()
}

#[test]
fn all_tokens_can_be_taken_and_not_one_more() {
    let tokens = Tokens::new(1000, 0, 0);
    let mut all = tokens.take(core(), 1000, Privilege::User).unwrap();
    let short = tokens.take(core(), 1, Privilege::User).unwrap_err();
    assert_eq!(
        short,
        Short {
            wanted: 1,
            available: 0,
            expected: 0
        }
    );
    tokens.give_back(core(), all.split_off(1));
    tokens
        .take(core(), 1, Privilege::User)
        .unwrap()
        .spend(ClusterCount(1));
    tokens.give_back(core(), all);
    assert_eq!(tokens.total(), 999);
}

#[test]
fn the_pools_serve_privileged_requests_and_are_filled_first() {
    let tokens = Tokens::new(100, 10, 5);
    let user = tokens.take(core(), 85, Privilege::User).unwrap();
    assert_eq!(
        tokens
            .take(core(), 1, Privilege::User)
            .unwrap_err()
            .available,
        0
    );
    let root = tokens.take(core(), 10, Privilege::Root).unwrap();
    assert_eq!(
        tokens
            .take(core(), 6, Privilege::Root)
            .unwrap_err()
            .available,
        0
    );
    let reserved = tokens.take(core(), 5, Privilege::Reserved).unwrap();
    assert_eq!(
        tokens
            .take(core(), 1, Privilege::Reserved)
            .unwrap_err()
            .available,
        0
    );
    tokens.give_back(core(), root);
    tokens.give_back(core(), reserved);
    assert_eq!(
        tokens
            .take(core(), 1, Privilege::User)
            .unwrap_err()
            .available,
        0
    );
    tokens.give_back(core(), user);
    assert_eq!(tokens.total(), 100);
    let user = tokens.take(core(), 85, Privilege::User).unwrap();
    assert!(tokens.take(core(), 1, Privilege::User).is_err());
    tokens.give_back(core(), user);
}

#[test]
fn retired_clusters_are_owed() {
    let tokens = Tokens::new(100, 0, 0);
    let held = tokens.take(core(), 90, Privilege::User).unwrap();
    tokens.retire(30);
    assert!(tokens.take(core(), 1, Privilege::User).is_err());
    tokens.give_back(core(), held);
    assert_eq!(tokens.total(), 70);
    let all = tokens.take(core(), 70, Privilege::User).unwrap();
    assert!(tokens.take(core(), 1, Privilege::User).is_err());
    tokens.give_back(core(), all);
}

#[test]
fn many_threads_neither_lose_nor_make_tokens() {
    let tokens = Tokens::new(500, 20, 7);
    let cores = CoreNr::count();
    thread::scope(|scope| {
        for t in 0..8_u64 {
            let tokens = &tokens;
            scope.spawn(move || {
                for i in 0..3000_u64 {
                    let privilege =
                        [Privilege::User, Privilege::Root, Privilege::Reserved][(i % 3) as usize];
                    if let Ok(taken) = tokens.take(core(), (i * 37 + t * 11) % 120, privilege) {
                        tokens.give_back(core(), taken);
                    }
                }
            });
        }
    });
    assert!(cores > 0);
    assert_eq!(tokens.total(), 500);
    let all = tokens.take(core(), 500, Privilege::Reserved).unwrap();
    tokens.give_back(core(), all);
}
