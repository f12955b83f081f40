//! Words and what stands between them.

/// A word, or the text between two words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Token<'a> {
    /// The text.
    pub(super) text: &'a str,
    /// Whether it is a word: letters and digits, with apostrophes and hyphens between them.
    pub(super) word: bool,
}

/// Cuts text into words and what is between them; nothing is lost.
pub(super) fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut start = 0;
    let mut in_word = false;
    let mut characters = text.char_indices().peekable();
    while let Some((at, character)) = characters.next() {
        let next_is_letter = || characters.clone().next().is_some_and(|(_, next)| next.is_alphanumeric());
        let word =
            character.is_alphanumeric() || (in_word && matches!(character, '\'' | '’' | '-') && next_is_letter());
        if word != in_word {
            if at > start {
                tokens.push(Token { text: &text[start..at], word: in_word });
            }
            (start, in_word) = (at, word);
        }
    }
    if start < text.len() {
        tokens.push(Token { text: &text[start..], word: in_word });
    }
    tokens
}

/// Whether a character is of a script that is written without spaces, where there are no bounds of words to see.
pub(super) fn is_unspaced(character: char) -> bool {
    matches!(character,
        '\u{0e00}'..='\u{0eff}' // Thai, Lao
        | '\u{1000}'..='\u{109f}' // Burmese
        | '\u{1780}'..='\u{17ff}' // Khmer
        | '\u{3040}'..='\u{30ff}' // Japanese syllables
        | '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}')
}

/// The text with its first letter in capitals.
pub(super) fn capitalized(text: &str) -> String {
    let Some((at, letter)) = text.char_indices().find(|(_, c)| c.is_alphanumeric()) else { return text.to_owned() };
    let rest = &text[at + letter.len_utf8()..];
    format!("{}{}{rest}", &text[..at], letter.to_uppercase())
}

/// Whether a text begins with a capital.
pub(super) fn is_capitalized(text: &str) -> bool {
    text.chars().next().is_some_and(char::is_uppercase)
}

#[cfg(test)]
mod tests {
    use super::{capitalized, tokens};

    #[test]
    fn cutting_loses_nothing_and_keeps_words_whole() {
        for text in ["", " ", "don't", "well-known, isn't it? -- Yes.", "’tis  a 'quote' -", "über 3,5 %", "你好，世界"]
        {
            let cut = tokens(text);
            assert_eq!(cut.iter().map(|token| token.text).collect::<String>(), text);
            assert!(cut.windows(2).all(|pair| pair[0].word != pair[1].word), "{text}");
        }
        let words = |text| tokens(text).into_iter().filter(|t| t.word).map(|t| t.text).collect::<Vec<_>>();
        assert_eq!(words("He didn't, 'quoted' well-known-"), ["He", "didn't", "quoted", "well-known"]);
        assert_eq!((capitalized(" été"), capitalized("…")), (" Été".to_owned(), "…".to_owned()));
    }
}
