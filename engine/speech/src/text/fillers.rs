//! Sounds that fill a pause.

use super::words::{capitalized, is_capitalized, tokens};

/// What fills pauses, by language. Only sounds that are no word of that language: German "um" is a preposition,
/// Portuguese "um" an article, English "er" is kept because speakers of German say it in English names.
fn of(language: &str) -> &'static [&'static str] {
    match language {
        "en" => &["um", "umm", "uhm", "uh", "uhh", "erm", "hmm", "hm", "mm", "mmm"],
        "de" => &["äh", "ähm", "öh", "öhm", "ehm", "hm", "hmm", "mhm"],
        "fr" => &["euh", "heu", "hum", "hmm"],
        "es" => &["eh", "ehm", "mmm", "hmm"],
        "it" => &["ehm", "uhm", "mmm", "hmm"],
        "nl" => &["eh", "ehm", "uh", "uhm", "hmm"],
        "pt" => &["hum", "hmm", "ahn"],
        _ => &[],
    }
}

/// Removes fillers, the commas that set them off, and one of the spaces around them. A sentence that began with one
/// begins with a capital again.
pub(super) fn remove(text: &str, language: &str) -> String {
    let fillers = of(language);
    if fillers.is_empty() {
        return text.to_owned();
    }
    let tokens = tokens(text);
    let mut out = String::new();
    let mut capitalize = false;
    let mut index = 0;
    while index < tokens.len() {
        let token = tokens[index];
        index += 1;
        if !token.word || !fillers.contains(&token.text.to_lowercase().as_str()) {
            let text = if capitalize && token.word { capitalized(token.text) } else { token.text.to_owned() };
            capitalize &= !token.word;
            out.push_str(&text);
            continue;
        }
        let begins = out.trim_end().is_empty() || out.trim_end().ends_with(['.', '!', '?', '…']);
        capitalize |= begins && is_capitalized(token.text);
        let Some(between) = tokens.get(index).map(|token| token.text) else {
            // The last word: a comma before it goes with it.
            out.truncate(out.trim_end().trim_end_matches(',').len());
            break;
        };
        index += 1;
        let set_off = between.trim_start_matches([',', '.', '…']);
        let ends_sentence = between.starts_with(['.', '!', '?', '…']);
        if begins {
            // "Um, yes." and "Um... yes." lose everything up to the next word; so does a filler that is a sentence.
            out.push_str(set_off.trim_start_matches(['!', '?', ' ']));
        } else if ends_sentence {
            out.truncate(out.trim_end().trim_end_matches(',').len());
            out.push_str(between);
        } else if out.ends_with(char::is_whitespace) {
            // "so um yes", "so, um, yes": one space is enough.
            out.push_str(set_off.trim_start());
        } else {
            out.push_str(between);
        }
    }
    out
}
