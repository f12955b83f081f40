//! Stop texts, found in a stream of text.
//!
//! **The rule**: the stop text whose last character comes first ends the generation; if several end there, the longest.
//! So the result depends on the text alone, never on how tokens cut it. The output ends where that stop text begins.
//!
//! Text is held back only while it may still become a stop text: exactly the longest end of the text that begins a stop
//! text, which is the depth of the state in an Aho-Corasick automaton (Aho and Corasick, 1975) over the stop texts'
//! bytes.

/// Finds stop texts and holds back what may become one.
#[derive(Debug, Clone)]
pub(crate) struct StopMatcher {
    nodes: Vec<Node>,
    state: usize,
    held: String,
}

#[derive(Debug, Clone, Default)]
struct Node {
    children: Vec<(u8, usize)>,
    /// The state of the longest proper end of this state's text.
    fallback: usize,
    /// The length of this state's text.
    depth: usize,
    /// The length of the longest stop text that ends here; 0 if none does.
    longest: usize,
}

impl Node {
    fn child(&self, byte: u8) -> Option<usize> {
        self.children.iter().find(|(label, _)| *label == byte).map(|&(_, node)| node)
    }
}

impl StopMatcher {
    /// A matcher for these texts; empty ones are ignored.
    pub(crate) fn new(stops: &[String]) -> Self {
        let mut nodes = vec![Node::default()];
        for stop in stops {
            let mut state = 0;
            for byte in stop.bytes() {
                state = match nodes[state].child(byte) {
                    Some(child) => child,
                    None => {
                        let child = nodes.len();
                        nodes.push(Node { depth: nodes[state].depth + 1, ..Node::default() });
                        nodes[state].children.push((byte, child));
                        child
                    }
                };
            }
            nodes[state].longest = stop.len();
        }
        // Breadth first: a state's fallback is shallower, so it is complete before it is asked.
        let mut order: Vec<usize> = nodes[0].children.iter().map(|&(_, child)| child).collect();
        let mut next = 0;
        while let Some(&state) = order.get(next) {
            next += 1;
            for index in 0..nodes[state].children.len() {
                let (byte, child) = nodes[state].children[index];
                let fallback = advance(&nodes, nodes[state].fallback, byte);
                nodes[child].fallback = fallback;
                nodes[child].longest = nodes[child].longest.max(nodes[fallback].longest);
                order.push(child);
            }
        }
        Self { nodes, state: 0, held: String::new() }
    }

    /// Takes the next text and appends to `released` what can no longer become a stop text. Returns `true` when a stop
    /// text was found; then `released` ends before it and nothing may follow.
    pub(crate) fn push(&mut self, text: &str, released: &mut String) -> bool {
        if self.nodes.len() == 1 {
            released.push_str(text);
            return false;
        }
        let before = self.held.len();
        self.held.push_str(text);
        for (index, byte) in text.bytes().enumerate() {
            self.state = advance(&self.nodes, self.state, byte);
            let longest = self.nodes[self.state].longest;
            if longest > 0 {
                released.push_str(&self.held[..before + index + 1 - longest]);
                self.held.clear();
                self.state = 0;
                return true;
            }
        }
        // What is held begins a stop text, so it begins at a character's first byte.
        let free = self.held.len() - self.nodes[self.state].depth;
        released.push_str(&self.held[..free]);
        self.held.drain(..free);
        false
    }

    /// The text has ended: appends to `released` what was held back.
    pub(crate) fn finish(&mut self, released: &mut String) {
        released.push_str(&self.held);
        self.held.clear();
        self.state = 0;
    }
}

fn advance(nodes: &[Node], mut state: usize, byte: u8) -> usize {
    loop {
        match nodes[state].child(byte) {
            Some(child) => return child,
            None if state == 0 => return 0,
            None => state = nodes[state].fallback,
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};

    use super::*;

    fn stops(texts: &[&str]) -> Vec<String> {
        texts.iter().map(ToString::to_string).collect()
    }

    /// The rule, read off the whole text: the output and whether it was stopped.
    fn expected<'a>(text: &'a str, stops: &[String]) -> (&'a str, bool) {
        for end in (0..=text.len()).filter(|&end| text.is_char_boundary(end)) {
            let ending = stops.iter().filter(|stop| text[..end].ends_with(stop.as_str())).map(String::len).max();
            if let Some(longest) = ending {
                return (&text[..end - longest], true);
            }
        }
        (text, false)
    }

    /// Runs the pieces through a matcher, checking after each that only a beginning of a stop text is held back.
    fn run(pieces: &[&str], stops: &[String]) -> (String, bool) {
        let mut matcher = StopMatcher::new(stops);
        let (mut seen, mut released) = (String::new(), String::new());
        for piece in pieces {
            seen.push_str(piece);
            if matcher.push(piece, &mut released) {
                return (released, true);
            }
            let held = &seen[released.len()..];
            assert!(held.is_empty() || stops.iter().any(|stop| stop.starts_with(held)), "{held:?} is held back");
            let least = (1..=seen.len())
                .filter(|&at| seen.is_char_boundary(seen.len() - at))
                .filter(|&at| stops.iter().any(|stop| stop.starts_with(&seen[seen.len() - at..])))
                .max()
                .unwrap_or(0);
            assert_eq!(held.len(), least, "{seen:?} leaks a beginning of {stops:?}");
        }
        matcher.finish(&mut released);
        (released, false)
    }

    #[test]
    fn a_stop_text_split_over_tokens_is_found_and_never_leaks() {
        assert_eq!(run(&["The E", "ND of it"], &stops(&["END"])), ("The ".into(), true));
        assert_eq!(run(&["The E", "N", "D"], &stops(&["END"])), ("The ".into(), true));
    }

    #[test]
    fn held_back_text_is_released_when_no_stop_text_came() {
        assert_eq!(run(&["The E", "N"], &stops(&["END"])), ("The EN".into(), false));
        assert_eq!(run(&["The E", "Nough"], &stops(&["END"])), ("The ENough".into(), false));
    }

    #[test]
    fn the_stop_text_that_ends_first_wins_and_the_longest_of_those() {
        assert_eq!(run(&["xabcd"], &stops(&["abcd", "bc"])), ("xa".into(), true));
        assert_eq!(run(&["xabc"], &stops(&["bc", "abc", "c"])), ("x".into(), true));
    }

    #[test]
    fn a_beginning_that_repeats_itself_is_not_missed() {
        assert_eq!(run(&["aa", "ab"], &stops(&["aab"])), ("a".into(), true));
        assert_eq!(run(&["aba", "bac"], &stops(&["abac"])), ("ab".into(), true));
    }

    #[test]
    fn characters_of_several_bytes_stop_and_are_held_whole() {
        assert_eq!(run(&["naïve é", "t"], &stops(&["ét"])), ("naïve ".into(), true));
        // U+00E9 and U+00EA share their first byte.
        assert_eq!(run(&["xê"], &stops(&["é"])), ("xê".into(), false));
    }

    #[test]
    fn every_split_of_every_text_gives_the_same_result() {
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(3);
        let letters = ['a', 'b', 'é', '🙂'];
        let word = |random: &mut rand_chacha::ChaCha8Rng, length: usize| -> String {
            (0..length).map(|_| letters[random.random_range(0..letters.len())]).collect()
        };
        let mut stopped = 0;
        for _ in 0..2000 {
            let stops: Vec<String> = (0..random.random_range(1..4))
                .map(|_| {
                    let length = random.random_range(1..6);
                    word(&mut random, length)
                })
                .collect();
            let length = random.random_range(0..14);
            let text = word(&mut random, length);
            let (output, stop) = expected(&text, &stops);
            stopped += usize::from(stop);
            let characters: Vec<String> = text.chars().map(String::from).collect();
            let single: Vec<&str> = characters.iter().map(String::as_str).collect();
            assert_eq!(run(&single, &stops), (output.into(), stop), "{text:?} character by character, {stops:?}");
            for at in (0..=text.len()).filter(|&at| text.is_char_boundary(at)) {
                let pieces = [&text[..at], &text[at..]];
                assert_eq!(run(&pieces, &stops), (output.into(), stop), "{text:?} split at {at}, {stops:?}");
            }
        }
        assert!((500..1900).contains(&stopped), "{stopped} of 2000 texts stopped: the test is lopsided");
    }
}
