//! Sessions: names of conversations and where each stands.

use super::Node;
use std::collections::{BTreeMap, HashMap};

/// How many names are remembered; beyond that the least recently used is forgotten.
const MOST_SESSIONS: usize = 4096;

/// The newest checkpoint of each session. Bounded, because names come from outside.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    by_name: HashMap<String, Session>,
    by_use: BTreeMap<u64, String>,
    by_node: HashMap<Node, Vec<String>>,
    clock: u64,
}

#[derive(Debug)]
struct Session {
    node: Node,
    used: u64,
}

impl Sessions {
    /// How many names there are.
    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Where a session stands.
    pub(crate) fn get(&mut self, name: &str) -> Option<Node> {
        let node = self.by_name.get(name)?.node;
        self.note_use(name);
        Some(node)
    }

    /// Notes where a session stands now. Returns the places that a session more, or one less, points to.
    pub(crate) fn set(&mut self, name: &str, node: Node) -> Vec<(Node, i32)> {
        let mut changes = self.remove(name).map_or_else(Vec::new, |before| vec![(before, -1)]);
        if self.by_name.len() >= MOST_SESSIONS
            && let Some(oldest) = self.by_use.values().next().cloned()
        {
            changes.extend(self.remove(&oldest).map(|node| (node, -1)));
        }
        self.by_name.insert(name.to_owned(), Session { node, used: 0 });
        self.note_use(name);
        self.by_node.entry(node).or_default().push(name.to_owned());
        changes.push((node, 1));
        changes
    }

    /// Forgets a session. Returns where it stood.
    pub(crate) fn remove(&mut self, name: &str) -> Option<Node> {
        let Session { node, used } = self.by_name.remove(name)?;
        self.by_use.remove(&used);
        if let Some(names) = self.by_node.get_mut(&node) {
            names.retain(|other| other != name);
            if names.is_empty() {
                self.by_node.remove(&node);
            }
        }
        Some(node)
    }

    /// A block is gone: sessions that stood there stand at `to` now, or nowhere. Returns how many went there.
    pub(crate) fn move_on(&mut self, from: Node, to: Option<Node>) -> i32 {
        let Some(names) = self.by_node.remove(&from) else { return 0 };
        let mut moved = 0;
        for name in names {
            match to {
                Some(to) => {
                    if let Some(session) = self.by_name.get_mut(&name) {
                        session.node = to;
                    }
                    self.by_node.entry(to).or_default().push(name);
                    moved += 1;
                }
                None => {
                    if let Some(session) = self.by_name.remove(&name) {
                        self.by_use.remove(&session.used);
                    }
                }
            }
        }
        moved
    }

    /// Forgets all sessions.
    pub(crate) fn clear(&mut self) {
        *self = Self { clock: self.clock, ..Self::default() };
    }

    fn note_use(&mut self, name: &str) {
        self.clock += 1;
        if let Some(session) = self.by_name.get_mut(name) {
            self.by_use.remove(&session.used);
            session.used = self.clock;
            self.by_use.insert(self.clock, name.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prefix::{Eviction, PrefixTree};

    fn nodes() -> (Node, Node) {
        let mut tree = PrefixTree::new(2, Eviction::Lru);
        let root = tree.root(&crate::prefix::Namespace::default());
        let first = tree.insert(root, &[1, 2], 1, 1).0;
        (first, tree.insert(first, &[3, 4], 2, 1).0)
    }

    #[test]
    fn a_session_whose_block_is_gone_stands_at_the_one_before() {
        let (first, second) = nodes();
        let mut sessions = Sessions::default();
        assert_eq!(sessions.set("a", second), [(second, 1)]);
        assert_eq!(sessions.set("b", first), [(first, 1)]);
        assert_eq!(sessions.move_on(second, Some(first)), 1);
        assert_eq!(sessions.get("a"), Some(first));
        assert_eq!(sessions.set("a", second), [(first, -1), (second, 1)]);
        assert_eq!(sessions.move_on(first, None), 0);
        assert_eq!((sessions.get("a"), sessions.get("b"), sessions.len()), (Some(second), None, 1));
    }

    #[test]
    fn names_are_bounded_and_the_least_recently_used_goes() {
        let (first, second) = nodes();
        let mut sessions = Sessions::default();
        for number in 0..MOST_SESSIONS {
            sessions.set(&number.to_string(), first);
        }
        assert_eq!(sessions.get("0"), Some(first));
        assert_eq!(sessions.set("new", second), [(first, -1), (second, 1)]);
        assert_eq!((sessions.get("1"), sessions.get("0"), sessions.len()), (None, Some(first), MOST_SESSIONS));
    }
}
