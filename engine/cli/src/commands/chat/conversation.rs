//! What was said so far.

use serde_json::{Value, json};

/// A conversation, as chat templates take it.
#[derive(Debug, Clone)]
pub(super) struct Conversation {
    system: Option<String>,
    turns: Vec<Value>,
}

impl Conversation {
    pub(super) fn new(system: Option<String>) -> Self {
        Self { system: system.filter(|text| !text.trim().is_empty()), turns: Vec::new() }
    }

    /// Adds a question.
    pub(super) fn ask(&mut self, text: String) {
        self.turns.push(json!({"role": "user", "content": text}));
    }

    /// Adds the answer to the last question.
    pub(super) fn answered(&mut self, text: String) {
        self.turns.push(json!({"role": "assistant", "content": text}));
    }

    /// Takes back a question that got no answer, so that roles go on alternating.
    pub(super) fn take_back(&mut self) {
        if self.turns.last().is_some_and(|turn| turn["role"] == "user") {
            self.turns.pop();
        }
    }

    /// Begins anew, with other instructions if given.
    pub(super) fn clear(&mut self, system: Option<String>) {
        self.turns.clear();
        if system.is_some() {
            self.system = system.filter(|text| !text.trim().is_empty());
        }
    }

    /// All messages, instructions first.
    pub(super) fn messages(&self) -> Vec<Value> {
        let system = self.system.iter().map(|text| json!({"role": "system", "content": text}));
        system.chain(self.turns.iter().cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_without_an_answer_is_taken_back() {
        let mut conversation = Conversation::new(Some("be brief".into()));
        conversation.ask("one".into());
        conversation.answered("1".into());
        conversation.take_back();
        conversation.ask("two".into());
        conversation.take_back();
        let roles: Vec<_> = conversation.messages().iter().map(|turn| turn["role"].clone()).collect();
        assert_eq!(roles, ["system", "user", "assistant"]);
    }
}
