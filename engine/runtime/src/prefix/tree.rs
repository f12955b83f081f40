//! The kept blocks of all histories as a tree: a block's children continue its tokens.

use super::{
    BlockKey, Eviction, Namespace,
    rank::{Facts, Moment, Rank, Ranking},
};
use std::collections::{BTreeSet, HashMap};

/// A block's place in the tree. It may be taken by another block once this one was given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Node(u32);

/// Kept blocks, each with a handle `P`, in the order of their tokens. A block that is pinned, or has children, stays.
#[derive(Debug)]
pub struct PrefixTree<P> {
    /// Tokens of a whole block.
    block: usize,
    roots: HashMap<Namespace, Node>,
    entries: Vec<Option<Entry<P>>>,
    free: Vec<Node>,
    ranking: Ranking,
    /// The blocks that may be given up.
    evictable: BTreeSet<(Rank, Node)>,
    totals: Totals,
    /// Counts changes, so that a look-up need not be repeated before there was one.
    version: u64,
}

/// What a tree holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Blocks.
    pub blocks: usize,
    /// Their tokens.
    pub tokens: usize,
    /// Their bytes.
    pub bytes: usize,
    /// Bytes of those that are pinned.
    pub pinned_bytes: usize,
}

#[derive(Debug)]
struct Entry<P> {
    parent: Option<Node>,
    children: Vec<Node>,
    tokens: Box<[u32]>,
    start: usize,
    key: BlockKey,
    /// Nothing at a root.
    payload: Option<P>,
    bytes: usize,
    pins: u32,
    sessions: u32,
    uses: u32,
    used: Moment,
    rank: Rank,
    /// Not to be found any more, and gone once nobody pins it.
    is_dead: bool,
}

impl<P> Entry<P> {
    fn is_evictable(&self) -> bool {
        self.parent.is_some() && self.children.is_empty() && self.pins == 0
    }

    fn facts(&self) -> Facts {
        let Self { start, bytes, uses, used, .. } = *self;
        Facts { start, tokens: self.tokens.len(), bytes, is_session: self.sessions > 0, uses, used }
    }
}

/// The kept beginning of a prompt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PrefixMatch {
    /// Whole blocks, in order.
    pub nodes: Vec<Node>,
    /// A block of which only the first tokens fit, or that is not whole, and how many fit.
    pub tail: Option<(Node, usize)>,
    /// Tokens in all.
    pub tokens: usize,
}

impl<P: Copy> PrefixTree<P> {
    /// A tree of blocks of `block` tokens.
    #[must_use]
    pub fn new(block: usize, eviction: Eviction) -> Self {
        Self {
            block: block.max(1),
            roots: HashMap::new(),
            entries: Vec::new(),
            free: Vec::new(),
            ranking: Ranking::new(eviction),
            evictable: BTreeSet::new(),
            totals: Totals::default(),
            version: 0,
        }
    }

    /// Tokens of a whole block.
    #[must_use]
    pub fn block(&self) -> usize {
        self.block
    }

    /// What the tree holds.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Changes whenever a look-up may give something else.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Where the histories of a namespace begin.
    pub fn root(&mut self, namespace: &Namespace) -> Node {
        if let Some(&root) = self.roots.get(namespace) {
            return root;
        }
        let root = self.place(Entry {
            parent: None,
            children: Vec::new(),
            tokens: Box::default(),
            start: 0,
            key: namespace.key(),
            payload: None,
            bytes: 0,
            pins: 0,
            sessions: 0,
            uses: 0,
            used: Moment::default(),
            rank: Rank::default(),
            is_dead: false,
        });
        self.roots.insert(namespace.clone(), root);
        root
    }

    /// The longest kept beginning of `tokens`, of at most `most` tokens.
    #[must_use]
    pub fn find(&self, root: Node, tokens: &[u32], most: usize) -> PrefixMatch {
        self.find_from(root, PrefixMatch::default(), tokens, most)
    }

    /// As [`PrefixTree::find`], from the end of a block that was found otherwise, to which `before` leads.
    #[must_use]
    pub fn find_from(&self, from: Node, before: PrefixMatch, tokens: &[u32], most: usize) -> PrefixMatch {
        let mut found = before;
        let mut at = from;
        let most = most.min(tokens.len());
        while let Some(rest) = tokens.get(found.tokens..most).filter(|rest| !rest.is_empty()) {
            let Some((child, fitting)) = self.best_child(at, rest) else { break };
            if fitting < self.block {
                found.tail = Some((child, fitting));
                found.tokens += fitting;
                break;
            }
            found.nodes.push(child);
            found.tokens += fitting;
            at = child;
        }
        found
    }

    /// The child that has the most tokens in common with `tokens`, and how many.
    fn best_child(&self, parent: Node, tokens: &[u32]) -> Option<(Node, usize)> {
        let children = self.entry(parent)?.children.iter().copied();
        let fitting = |child: Node| {
            let entry = self.entry(child).filter(|entry| !entry.is_dead)?;
            let count = entry.tokens.iter().zip(tokens).take_while(|(kept, token)| kept == token).count();
            (count > 0).then_some((child, count))
        };
        children.filter_map(fitting).max_by_key(|&(_, count)| count)
    }

    /// The child of `parent` with just these tokens.
    #[must_use]
    pub fn child(&self, parent: Node, tokens: &[u32]) -> Option<Node> {
        let is_it = |child: &Node| self.entry(*child).is_some_and(|entry| !entry.is_dead && *entry.tokens == *tokens);
        self.entry(parent)?.children.iter().copied().find(is_it)
    }

    /// Whether a child of `parent` begins with these tokens, or is them.
    #[must_use]
    pub fn covers(&self, parent: Node, tokens: &[u32]) -> Option<Node> {
        let does =
            |child: &Node| self.entry(*child).is_some_and(|entry| !entry.is_dead && entry.tokens.starts_with(tokens));
        self.entry(parent)?.children.iter().copied().find(does)
    }

    /// Adds a block of `tokens` after `parent`, which must be whole. Returns its place, and the place and the handle of a
    /// block that it makes superfluous: one that was not whole and ends within it. What the tree counts for that one counts
    /// for the new one.
    pub fn insert(&mut self, parent: Node, tokens: &[u32], payload: P, bytes: usize) -> (Node, Option<(Node, P)>) {
        let superfluous = self.entry(parent).and_then(|entry| {
            entry.children.iter().copied().find(|&child| {
                self.entry(child).is_some_and(|entry| entry.is_evictable() && tokens.starts_with(&entry.tokens))
            })
        });
        let mut sessions = 0;
        let released = superfluous.and_then(|node| {
            sessions = self.entry(node).map_or(0, |entry| entry.sessions);
            Some((node, self.remove(node)?))
        });
        let (start, key) = self
            .entry(parent)
            .map_or((0, BlockKey([0; 32])), |entry| (entry.start + entry.tokens.len(), entry.key.followed_by(tokens)));
        let mut entry = Entry {
            parent: Some(parent),
            children: Vec::new(),
            tokens: tokens.into(),
            start,
            key,
            payload: Some(payload),
            bytes,
            pins: 0,
            sessions,
            uses: 0,
            used: Moment::default(),
            rank: Rank::default(),
            is_dead: false,
        };
        entry.used = self.ranking.use_one(self.totals.blocks);
        entry.rank = self.ranking.rank(&entry.facts());
        self.totals.blocks += 1;
        self.totals.tokens += tokens.len();
        self.totals.bytes += bytes;
        let rank = entry.rank;
        let node = self.place(entry);
        self.evictable.insert((rank, node));
        self.with(parent, |entry| entry.children.push(node));
        self.version += 1;
        (node, released)
    }

    /// Notes that a block is in use by one more.
    pub fn pin(&mut self, node: Node) {
        let bytes = self.with(node, |entry| {
            entry.pins += 1;
            if entry.pins == 1 { entry.bytes } else { 0 }
        });
        self.totals.pinned_bytes += bytes.unwrap_or(0);
    }

    /// Notes that a block is in use by one less. Returns the handles of blocks that are gone by that.
    pub fn unpin(&mut self, node: Node) -> Vec<P> {
        let bytes = self.with(node, |entry| {
            entry.pins = entry.pins.saturating_sub(1);
            if entry.pins == 0 { entry.bytes } else { 0 }
        });
        self.totals.pinned_bytes -= bytes.unwrap_or(0);
        self.bury(node)
    }

    /// Notes that blocks were used, the first of a history first.
    pub fn touch(&mut self, nodes: &[Node]) {
        // The end of a history goes before its beginning.
        for &node in nodes.iter().rev() {
            let used = self.ranking.use_one(self.totals.blocks);
            self.with(node, |entry| {
                entry.uses = entry.uses.saturating_add(1);
                entry.used = used;
            });
            self.rank_again(node);
        }
    }

    fn rank_again(&mut self, node: Node) {
        if let Some(rank) = self.entry(node).map(|entry| self.ranking.rank(&entry.facts())) {
            self.with(node, |entry| entry.rank = rank);
        }
    }

    /// Gives up the block of the lowest rank. `None` when all are in use.
    pub fn evict(&mut self) -> Option<Evicted<P>> {
        let &(rank, node) = self.evictable.first()?;
        self.ranking.note_evicted(rank);
        let entry = self.entry(node)?;
        let (parent, tokens, bytes) = (entry.parent, entry.tokens.len(), entry.bytes);
        let payload = self.remove(node)?;
        let mut gone = vec![payload];
        if let Some(parent) = parent {
            gone.extend(self.bury(parent));
        }
        Some(Evicted { node, parent: parent.filter(|&parent| self.is_block(parent)), payloads: gone, tokens, bytes })
    }

    /// Keeps a block from being found, because what it holds may be wrong; and all that follow it. Returns the handles of
    /// those that are gone at once.
    pub fn condemn(&mut self, node: Node) -> Vec<P> {
        let mut all = vec![node];
        let mut index = 0;
        while let Some(&node) = all.get(index) {
            index += 1;
            all.extend(
                self.with(node, |entry| {
                    entry.is_dead = entry.parent.is_some();
                    entry.children.clone()
                })
                .unwrap_or_default(),
            );
        }
        self.version += 1;
        all.iter().rev().flat_map(|&node| self.bury(node)).collect()
    }

    /// Removes a dead block that nobody uses, and those before it for which that is true then.
    fn bury(&mut self, node: Node) -> Vec<P> {
        let mut gone = Vec::new();
        let mut next = Some(node);
        while let Some(node) =
            next.filter(|&node| self.entry(node).is_some_and(|entry| entry.is_dead && entry.is_evictable()))
        {
            next = self.entry(node).and_then(|entry| entry.parent);
            gone.extend(self.remove(node));
        }
        gone
    }

    /// Notes how many sessions more or fewer point to a block.
    pub fn count_sessions(&mut self, node: Node, change: i32) {
        self.with(node, |entry| entry.sessions = entry.sessions.saturating_add_signed(change));
        self.rank_again(node);
    }

    /// Whether a block is in use.
    #[must_use]
    pub fn is_pinned(&self, node: Node) -> bool {
        self.entry(node).is_some_and(|entry| entry.pins > 0)
    }

    /// The block that is given up next.
    #[must_use]
    pub fn next_evicted(&self) -> Option<Node> {
        self.evictable.first().map(|&(_, node)| node)
    }

    /// Whether there is a block in this place.
    #[must_use]
    pub fn is_block(&self, node: Node) -> bool {
        self.entry(node).is_some_and(|entry| entry.payload.is_some() && !entry.is_dead)
    }

    /// A block's handle.
    #[must_use]
    pub fn payload(&self, node: Node) -> Option<P> {
        self.entry(node)?.payload
    }

    /// A block's key.
    #[must_use]
    pub fn key(&self, node: Node) -> Option<BlockKey> {
        Some(self.entry(node)?.key)
    }

    /// A block's tokens.
    #[must_use]
    pub fn tokens(&self, node: Node) -> &[u32] {
        self.entry(node).map_or(&[], |entry| &entry.tokens)
    }

    /// The place before a block: another block, or where its namespace begins.
    #[must_use]
    pub fn parent(&self, node: Node) -> Option<Node> {
        self.entry(node)?.parent
    }

    /// Where a block begins and ends in its history.
    #[must_use]
    pub fn span(&self, node: Node) -> std::ops::Range<usize> {
        self.entry(node).map_or(0..0, |entry| entry.start..entry.start + entry.tokens.len())
    }

    /// All blocks, with their handles.
    pub fn blocks(&self) -> impl Iterator<Item = (Node, P)> {
        self.entries.iter().enumerate().filter_map(|(number, entry)| {
            let entry = entry.as_ref()?;
            Some((Node(number as u32), entry.payload?))
        })
    }

    /// The whole path to a block, if `tokens` begin with it: its whole blocks and, if it is not whole, itself as the tail.
    #[must_use]
    pub fn path(&self, node: Node, tokens: &[u32], most: usize) -> Option<PrefixMatch> {
        let mut nodes = Vec::new();
        let mut at = node;
        let mut tail = None;
        while let Some(entry) = self.entry(at).filter(|entry| !entry.is_dead) {
            let Some(parent) = entry.parent else { break };
            let end = entry.start + entry.tokens.len();
            if end > most || tokens.get(entry.start..end)? != &*entry.tokens {
                return None;
            }
            if entry.tokens.len() < self.block {
                tail = Some((at, entry.tokens.len()));
            } else {
                nodes.push(at);
            }
            at = parent;
        }
        nodes.reverse();
        let tokens = self.span(node).end;
        (tokens > 0).then_some(PrefixMatch { nodes, tail, tokens })
    }

    fn entry(&self, node: Node) -> Option<&Entry<P>> {
        self.entries.get(node.0 as usize)?.as_ref()
    }

    /// Changes a block, keeping the order of those that may be given up.
    fn with<T>(&mut self, node: Node, change: impl FnOnce(&mut Entry<P>) -> T) -> Option<T> {
        let entry = self.entries.get_mut(node.0 as usize)?.as_mut()?;
        let before = entry.is_evictable().then_some(entry.rank);
        let result = change(entry);
        let after = entry.is_evictable().then_some(entry.rank);
        if before != after {
            if let Some(rank) = before {
                self.evictable.remove(&(rank, node));
            }
            if let Some(rank) = after {
                self.evictable.insert((rank, node));
            }
        }
        Some(result)
    }

    fn place(&mut self, entry: Entry<P>) -> Node {
        match self.free.pop() {
            Some(node) => {
                self.entries[node.0 as usize] = Some(entry);
                node
            }
            None => {
                self.entries.push(Some(entry));
                Node((self.entries.len() - 1) as u32)
            }
        }
    }

    fn remove(&mut self, node: Node) -> Option<P> {
        let entry = self.entries.get_mut(node.0 as usize)?.take()?;
        self.evictable.remove(&(entry.rank, node));
        self.totals.blocks -= 1;
        self.totals.tokens -= entry.tokens.len();
        self.totals.bytes -= entry.bytes;
        self.free.push(node);
        self.version += 1;
        if let Some(parent) = entry.parent {
            self.with(parent, |parent| parent.children.retain(|&child| child != node));
        }
        entry.payload
    }

    /// Checks that all counts and lists say the same.
    #[cfg(any(test, feature = "testing"))]
    #[allow(clippy::panic, clippy::missing_panics_doc, reason = "it is what tests call")]
    pub fn check(&self) {
        let mut totals = Totals::default();
        let mut evictable = BTreeSet::new();
        for (number, entry) in self.entries.iter().enumerate() {
            let node = Node(number as u32);
            let Some(entry) = entry else {
                assert!(self.free.contains(&node));
                continue;
            };
            for &child in &entry.children {
                let child = self.entry(child).unwrap_or_else(|| panic!("{node:?} has a child that is gone"));
                assert_eq!(child.parent, Some(node));
                assert_eq!(child.start, entry.start + entry.tokens.len());
                assert!(entry.parent.is_none() || entry.tokens.len() == self.block, "a child after a part of a block");
            }
            if entry.is_evictable() {
                evictable.insert((entry.rank, node));
            }
            if let Some(parent) = entry.parent {
                assert!(self.entry(parent).is_some_and(|parent| parent.children.contains(&node)));
                totals.blocks += 1;
                totals.tokens += entry.tokens.len();
                totals.bytes += entry.bytes;
                totals.pinned_bytes += if entry.pins > 0 { entry.bytes } else { 0 };
            }
        }
        assert_eq!(totals, self.totals);
        assert_eq!(evictable, self.evictable);
    }
}

/// A block that was given up.
#[derive(Debug)]
pub struct Evicted<P> {
    /// Its place.
    pub node: Node,
    /// The block before it, if that is one.
    pub parent: Option<Node>,
    /// Its handle, and those of blocks that went with it.
    pub payloads: Vec<P>,
    /// Its tokens.
    pub tokens: usize,
    /// Its bytes.
    pub bytes: usize,
}

#[cfg(test)]
mod tests;
