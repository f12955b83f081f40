//! Compares how the prefix cache chooses what to give up, on traces of requests: `cargo run --release -p linnet-runtime
//! --example prefix_eviction`. The table in docs/decisions/prefix-eviction.md is what it prints.
//!
//! A trace is a list of requests, each with the pieces of text that its prompt is made of and how long its answer is. The
//! traces are made from seeds, in the shapes of work that the scheduler is built for; see `Trace`.
#![allow(clippy::print_stdout, reason = "it prints a table")]

use linnet_runtime::{Eviction, Namespace, Node, PrefixTree};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::HashMap;

const BLOCK: usize = 64;

/// A piece of text, the same wherever it occurs: its number and its tokens.
type Piece = (u64, usize);

#[derive(Clone)]
struct Request {
    session: Option<u64>,
    prompt: Vec<Piece>,
    answer: Piece,
}

struct Trace {
    name: &'static str,
    requests: Vec<Request>,
}

/// Makes pieces that occur nowhere else.
struct Pieces {
    random: ChaCha8Rng,
    next: u64,
}

impl Pieces {
    fn new(seed: u64) -> Self {
        Self { random: ChaCha8Rng::seed_from_u64(seed), next: 0 }
    }

    fn piece(&mut self, tokens: std::ops::Range<usize>) -> Piece {
        self.next += 1;
        (self.next, self.random.random_range(tokens))
    }
}

/// A conversation that grows by a question and an answer each turn.
struct Conversation {
    session: u64,
    history: Vec<Piece>,
    turns: usize,
}

impl Conversation {
    fn turn(&mut self, question: Piece, answer: Piece) -> Request {
        self.history.push(question);
        let request = Request { session: Some(self.session), prompt: self.history.clone(), answer };
        self.history.push(answer);
        self.turns -= 1;
        request
    }
}

/// Conversations that take turns; `others` comes between them.
fn conversations(
    pieces: &mut Pieces,
    at_once: usize,
    total: usize,
    begin: impl Fn(&mut Pieces) -> (Vec<Piece>, usize),
    growth: &[std::ops::Range<usize>; 2],
    mut others: impl FnMut(&mut Pieces) -> Vec<Request>,
) -> Vec<Request> {
    let mut requests = Vec::new();
    let mut running: Vec<Conversation> = Vec::new();
    let mut begun = 0;
    while begun < total || !running.is_empty() {
        while running.len() < at_once && begun < total {
            begun += 1;
            let (history, turns) = begin(pieces);
            running.push(Conversation { session: begun as u64, history, turns });
        }
        let chosen = pieces.random.random_range(0..running.len());
        let (question, answer) = (pieces.piece(growth[0].clone()), pieces.piece(growth[1].clone()));
        requests.push(running[chosen].turn(question, answer));
        if running[chosen].turns == 0 {
            running.swap_remove(chosen);
        }
        requests.extend(others(pieces));
    }
    requests
}

fn traces() -> Vec<Trace> {
    let mut all = Vec::new();
    // One coding agent after another on a shared prompt of instructions and tools; a title generator between.
    let pieces = &mut Pieces::new(1);
    let system = pieces.piece(3000..3001);
    let title = pieces.piece(200..201);
    let requests = conversations(
        pieces,
        3,
        24,
        |pieces| (vec![system], pieces.random.random_range(8..30)),
        &[60..700, 40..250],
        |pieces| match pieces.random.random_bool(0.2) {
            true => {
                vec![Request { session: None, prompt: vec![title, pieces.piece(50..300)], answer: pieces.piece(8..20) }]
            }
            false => Vec::new(),
        },
    );
    all.push(Trace { name: "agents", requests });
    // Twelve chats that somebody comes back to.
    let pieces = &mut Pieces::new(2);
    let system = pieces.piece(150..151);
    let begin = |pieces: &mut Pieces| (vec![system], pieces.random.random_range(6..24));
    let requests = conversations(pieces, 12, 40, begin, &[20..200, 60..500], |_| Vec::new());
    all.push(Trace { name: "chats", requests });
    // The same with long documents that are asked about once.
    let pieces = &mut Pieces::new(3);
    let system = pieces.piece(150..151);
    let begin = |pieces: &mut Pieces| (vec![system], pieces.random.random_range(6..24));
    let requests =
        conversations(pieces, 8, 30, begin, &[20..200, 60..500], |pieces| match pieces.random.random_bool(0.3) {
            true => {
                vec![Request { session: None, prompt: vec![pieces.piece(2000..9000)], answer: pieces.piece(50..300) }]
            }
            false => Vec::new(),
        });
    all.push(Trace { name: "chats + documents", requests });
    // A batch job that sends short prompts without end beside one agent with a long history.
    let pieces = &mut Pieces::new(4);
    let system = pieces.piece(3000..3001);
    let begin = |_: &mut Pieces| (vec![system], 60);
    let requests = conversations(pieces, 1, 3, begin, &[60..400, 40..250], |pieces| {
        (0..pieces.random.random_range(0..12))
            .map(|_| Request { session: None, prompt: vec![pieces.piece(200..1200)], answer: pieces.piece(20..60) })
            .collect()
    });
    all.push(Trace { name: "agent + batch job", requests });
    all
}

fn tokens(pieces: &[Piece]) -> Vec<u32> {
    let of = |&(number, length): &Piece| (0..length).map(move |place| (number as u32) << 16 | place as u32);
    pieces.iter().flat_map(of).collect()
}

/// What computing the tokens of a prompt from `from` on costs, in units of a token at its beginning.
fn cost(from: usize, to: usize) -> f64 {
    (from..to).map(|place| 1.0 + place as f64 / 4096.0).sum()
}

struct Outcome {
    hit_tokens: f64,
    cost_saved: f64,
    whole_misses: usize,
}

fn run(trace: &Trace, eviction: Eviction, names_sessions: bool, budget: usize) -> Outcome {
    let mut tree: PrefixTree<()> = PrefixTree::new(BLOCK, eviction);
    let root = tree.root(&Namespace::default());
    let mut sessions: HashMap<u64, Node> = HashMap::new();
    let (mut prompt_tokens, mut hit_tokens, mut total, mut paid, mut whole_misses) = (0, 0, 0.0, 0.0, 0);
    for request in &trace.requests {
        let prompt = tokens(&request.prompt);
        let found = tree.find(root, &prompt, prompt.len() - 1);
        prompt_tokens += prompt.len();
        hit_tokens += found.tokens;
        total += cost(0, prompt.len());
        paid += cost(found.tokens, prompt.len());
        whole_misses += usize::from(found.tokens == 0);
        tree.touch(&found.nodes);
        let all = [prompt, tokens(&[request.answer])].concat();
        let mut path = Vec::new();
        for block in all.chunks(BLOCK) {
            let parent = path.last().copied().unwrap_or(root);
            if block.len() < BLOCK && tree.covers(parent, block).is_some() {
                break;
            }
            let node = tree.child(parent, block).unwrap_or_else(|| tree.insert(parent, block, (), BLOCK).0);
            tree.pin(node);
            path.push(node);
        }
        path.iter().rev().for_each(|&node| drop(tree.unpin(node)));
        if let (Some(session), Some(&end)) = (request.session.filter(|_| names_sessions), path.last()) {
            if let Some(before) = sessions.insert(session, end) {
                tree.count_sessions(before, -1);
            }
            tree.count_sessions(end, 1);
        }
        while tree.totals().bytes > budget {
            let Some(evicted) = tree.evict() else { break };
            for at in sessions.values_mut().filter(|at| **at == evicted.node) {
                *at = evicted.parent.unwrap_or(root);
                tree.count_sessions(*at, 1);
            }
        }
    }
    Outcome { hit_tokens: hit_tokens as f64 / prompt_tokens as f64, cost_saved: 1.0 - paid / total, whole_misses }
}

fn main() {
    println!("| trace | budget, tokens | policy | tokens hit | cost saved | prompts not hit at all |");
    println!("|---|--:|---|--:|--:|--:|");
    for trace in traces() {
        for budget in [8_192, 16_384, 32_768, 65_536] {
            for (name, eviction, sessions) in [
                ("LRU", Eviction::Lru, false),
                ("GreedyDual", Eviction::GreedyDual, false),
                ("session LRU, none named", Eviction::SessionLru, false),
                ("session LRU", Eviction::SessionLru, true),
            ] {
                let Outcome { hit_tokens, cost_saved, whole_misses } = run(&trace, eviction, sessions, budget);
                let (hit, saved) = (100.0 * hit_tokens, 100.0 * cost_saved);
                let of = trace.requests.len();
                println!("| {} | {budget} | {name} | {hit:.1}% | {saved:.1}% | {whole_misses} of {of} |", trace.name);
            }
        }
    }
}
