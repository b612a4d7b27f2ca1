//! How much hosts take of something: each Node, and all of them.

use std::sync::Arc;

use outrigger_core::map::HashMap;
use parking_lot::Mutex;

/// What may be taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct Most {
    pub(super) of_node: usize,
    pub(super) in_all: usize,
    /// Nodes that have taken something.
    pub(super) nodes: usize,
}

/// What is taken.
#[derive(Debug)]
pub(super) struct Slots {
    most: Most,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    by_node: HashMap<Arc<str>, usize>,
}

/// A part that is taken, until it is dropped.
#[derive(Debug)]
pub(super) struct Slot<'a> {
    slots: &'a Slots,
    node: Arc<str>,
    count: usize,
}

impl Slots {
    pub(super) fn new(most: Most) -> Self {
        Self { most, taken: Mutex::default() }
    }

    /// Takes so much; `None` if less is left.
    pub(super) fn take(&self, node: &Arc<str>, count: usize) -> Option<Slot<'_>> {
        let mut taken = self.taken.lock();
        let own = taken.by_node.get(node).copied().unwrap_or(0);
        let full = taken.all.saturating_add(count) > self.most.in_all
            || own.saturating_add(count) > self.most.of_node
            || own == 0 && taken.by_node.len() >= self.most.nodes;
        if full {
            return None;
        }
        taken.all += count;
        taken.by_node.insert(node.clone(), own + count);
        Some(Slot { slots: self, node: node.clone(), count })
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        let mut taken = self.slots.taken.lock();
        taken.all = taken.all.saturating_sub(self.count);
        match taken.by_node.get_mut(&self.node) {
            Some(own) if *own > self.count => *own -= self.count,
            _ => _ = taken.by_node.remove(&self.node),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_node_takes_no_more_than_its_part_and_returns_it() {
        let (slots, one, other) =
            (Slots::new(Most { of_node: 4, in_all: 7, nodes: 2 }), Arc::from("one"), Arc::from("other"));
        let first = slots.take(&one, 3).unwrap();
        assert!(slots.take(&one, 2).is_none());
        let second = slots.take(&one, 1).unwrap();
        assert!(slots.take(&one, 1).is_none());
        let third = slots.take(&other, 3).unwrap();
        assert!(slots.take(&other, 1).is_none(), "nothing is left for anybody");
        assert!(slots.take(&Arc::from("third"), 0).is_none(), "two Nodes have taken something");
        drop(second);
        assert!(slots.take(&other, 1).is_some());
        drop((first, third));
        let taken = slots.taken.lock();
        assert_eq!((taken.all, taken.by_node.len()), (0, 0));
    }
}
