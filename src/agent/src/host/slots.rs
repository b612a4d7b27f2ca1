//! How many questions are held: of each Node, and in all.

use std::sync::Arc;

use outrigger_core::map::HashMap;
use parking_lot::Mutex;

/// Of one Node: as many calls as its plugin has at once.
pub(super) const OF_NODE: usize = 256;

/// In all. A held question takes some kilobytes.
pub(super) const ALL: usize = 4096;

/// The questions that are held.
#[derive(Debug, Default)]
pub(super) struct Slots {
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    all: usize,
    by_node: HashMap<Arc<str>, usize>,
}

/// The place of a question, until it is dropped.
#[derive(Debug)]
pub(super) struct Slot<'a> {
    slots: &'a Slots,
    node: Arc<str>,
}

impl Slots {
    /// Takes a place; `None` if there is none.
    pub(super) fn take(&self, node: &Arc<str>) -> Option<Slot<'_>> {
        let mut held = self.held.lock();
        let own = held.by_node.get(node).copied().unwrap_or(0);
        if held.all >= ALL || own >= OF_NODE {
            return None;
        }
        held.all += 1;
        held.by_node.insert(node.clone(), own + 1);
        Some(Slot { slots: self, node: node.clone() })
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        let mut held = self.slots.held.lock();
        held.all = held.all.saturating_sub(1);
        match held.by_node.get_mut(&self.node) {
            Some(own) if *own > 1 => *own -= 1,
            _ => _ = held.by_node.remove(&self.node),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_node_takes_no_more_than_its_part_and_returns_it() {
        let (slots, one, other) = (Slots::default(), Arc::from("one"), Arc::from("other"));
        let mut taken: Vec<_> = (0..OF_NODE).map(|_| slots.take(&one).unwrap()).collect();
        assert!(slots.take(&one).is_none());
        assert!(slots.take(&other).is_some(), "others still get one");
        taken.pop();
        assert!(slots.take(&one).is_some());
        drop(taken);
        assert!(slots.held.lock().by_node.is_empty());
        assert_eq!(slots.held.lock().all, 0);
        let nodes: Vec<Arc<str>> = (0..=ALL / OF_NODE).map(|n| Arc::from(n.to_string())).collect();
        let all: Vec<_> =
            nodes.iter().flat_map(|node| (0..OF_NODE).map_while(|_| slots.take(node))).collect();
        assert_eq!(all.len(), ALL);
    }
}
