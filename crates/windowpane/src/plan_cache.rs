//! Remembers the plan chosen for a problem, so that a repeated call does not choose again.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};

/// The largest number of choices that are kept: far more than a network has layers, at a few hundred bytes each.
const MOST: usize = 4096;

/// The choices of a device so far, by their problems.
pub(crate) struct PlanCache<K, V>(Mutex<HashMap<K, V>>);

impl<K, V> Default for PlanCache<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash, V: Copy> PlanCache<K, V> {
    /// The choice for a problem, made if it is new. A failure is not remembered, so the next call tries again.
    pub(crate) fn or_make<E>(&self, key: K, make: impl FnOnce() -> Result<V, E>) -> Result<V, E> {
        if let Some(known) = self.lock().get(&key) {
            return Ok(*known);
        }
        // The lock is not held here: choosing may take long, and two threads that choose for the same problem get the
        // same result.
        let made = make()?;
        let mut all = self.lock();
        if all.len() >= MOST {
            all.clear();
        }
        all.insert(key, made);
        Ok(made)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<K, V>> {
        // An entry is added in one step, so a poisoned map is still consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_made_once_and_failures_are_not_kept() {
        let remembered = PlanCache::default();
        let mut made = 0;
        for _ in 0..3 {
            let found = remembered.or_make("a", || {
                made += 1;
                Ok::<_, ()>(7)
            });
            assert_eq!(found, Ok(7));
        }
        assert_eq!(made, 1);
        assert_eq!(remembered.or_make("b", || Err("no")), Err("no"));
        assert_eq!(remembered.or_make("b", || Ok::<_, ()>(8)), Ok(8));
    }

    #[test]
    fn memory_does_not_grow_without_end() {
        let remembered = PlanCache::default();
        for key in 0..3 * MOST {
            assert_eq!(remembered.or_make(key, || Ok::<_, ()>(key)), Ok(key));
            assert!(remembered.lock().len() <= MOST);
        }
    }
}
