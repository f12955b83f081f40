//! The languages Whisper knows, in the order of their tokens.
//!
//! From `LANGUAGES` and `TO_LANGUAGE_CODE` of openai/whisper's tokenizer.py (MIT).

use std::fmt;

/// A language that Whisper knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Language {
    /// Its code, as its token has it: `en`, `yue`.
    pub code: &'static str,
    /// Its English name in lower case.
    pub name: &'static str,
}

impl fmt::Display for Language {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code)
    }
}

/// All of them. Models made before large-v3 know all but the last.
pub const LANGUAGES: [Language; 100] = [
    language("en", "english"),
    language("zh", "chinese"),
    language("de", "german"),
    language("es", "spanish"),
    language("ru", "russian"),
    language("ko", "korean"),
    language("fr", "french"),
    language("ja", "japanese"),
    language("pt", "portuguese"),
    language("tr", "turkish"),
    language("pl", "polish"),
    language("ca", "catalan"),
    language("nl", "dutch"),
    language("ar", "arabic"),
    language("sv", "swedish"),
    language("it", "italian"),
    language("id", "indonesian"),
    language("hi", "hindi"),
    language("fi", "finnish"),
    language("vi", "vietnamese"),
    language("he", "hebrew"),
    language("uk", "ukrainian"),
    language("el", "greek"),
    language("ms", "malay"),
    language("cs", "czech"),
    language("ro", "romanian"),
    language("da", "danish"),
    language("hu", "hungarian"),
    language("ta", "tamil"),
    language("no", "norwegian"),
    language("th", "thai"),
    language("ur", "urdu"),
    language("hr", "croatian"),
    language("bg", "bulgarian"),
    language("lt", "lithuanian"),
    language("la", "latin"),
    language("mi", "maori"),
    language("ml", "malayalam"),
    language("cy", "welsh"),
    language("sk", "slovak"),
    language("te", "telugu"),
    language("fa", "persian"),
    language("lv", "latvian"),
    language("bn", "bengali"),
    language("sr", "serbian"),
    language("az", "azerbaijani"),
    language("sl", "slovenian"),
    language("kn", "kannada"),
    language("et", "estonian"),
    language("mk", "macedonian"),
    language("br", "breton"),
    language("eu", "basque"),
    language("is", "icelandic"),
    language("hy", "armenian"),
    language("ne", "nepali"),
    language("mn", "mongolian"),
    language("bs", "bosnian"),
    language("kk", "kazakh"),
    language("sq", "albanian"),
    language("sw", "swahili"),
    language("gl", "galician"),
    language("mr", "marathi"),
    language("pa", "punjabi"),
    language("si", "sinhala"),
    language("km", "khmer"),
    language("sn", "shona"),
    language("yo", "yoruba"),
    language("so", "somali"),
    language("af", "afrikaans"),
    language("oc", "occitan"),
    language("ka", "georgian"),
    language("be", "belarusian"),
    language("tg", "tajik"),
    language("sd", "sindhi"),
    language("gu", "gujarati"),
    language("am", "amharic"),
    language("yi", "yiddish"),
    language("lo", "lao"),
    language("uz", "uzbek"),
    language("fo", "faroese"),
    language("ht", "haitian creole"),
    language("ps", "pashto"),
    language("tk", "turkmen"),
    language("nn", "nynorsk"),
    language("mt", "maltese"),
    language("sa", "sanskrit"),
    language("lb", "luxembourgish"),
    language("my", "myanmar"),
    language("bo", "tibetan"),
    language("tl", "tagalog"),
    language("mg", "malagasy"),
    language("as", "assamese"),
    language("tt", "tatar"),
    language("haw", "hawaiian"),
    language("ln", "lingala"),
    language("ha", "hausa"),
    language("ba", "bashkir"),
    language("jw", "javanese"),
    language("su", "sundanese"),
    language("yue", "cantonese"),
];

/// Other names.
const ALIASES: [(&str, &str); 12] = [
    ("burmese", "my"),
    ("valencian", "ca"),
    ("flemish", "nl"),
    ("haitian", "ht"),
    ("letzeburgesch", "lb"),
    ("pushto", "ps"),
    ("panjabi", "pa"),
    ("moldavian", "ro"),
    ("moldovan", "ro"),
    ("sinhalese", "si"),
    ("castilian", "es"),
    ("mandarin", "zh"),
];

const fn language(code: &'static str, name: &'static str) -> Language {
    Language { code, name }
}

impl Language {
    /// The language of a code, an English name or a locale such as `de-AT`; capitals do not matter.
    #[must_use]
    pub fn find(text: &str) -> Option<Language> {
        let text = text.trim().to_lowercase();
        let code = ALIASES.iter().find(|(alias, _)| *alias == text).map_or(text.as_str(), |(_, code)| code);
        let known = |code: &str| LANGUAGES.into_iter().find(|known| known.code == code || known.name == code);
        known(code).or_else(|| known(code.split(['-', '_']).next()?))
    }

    /// Its place in [`LANGUAGES`].
    #[must_use]
    pub fn index(self) -> usize {
        LANGUAGES.iter().position(|known| *known == self).unwrap_or_default()
    }

    /// Whether words stand without spaces between them.
    #[must_use]
    pub fn is_written_without_spaces(self) -> bool {
        matches!(self.code, "zh" | "ja" | "th" | "lo" | "my" | "yue")
    }
}

#[cfg(test)]
mod tests {
    use super::{LANGUAGES, Language};

    #[test]
    fn languages_are_found_by_code_name_alias_and_locale() {
        for (text, code) in
            [("en", "en"), ("German", "de"), ("castilian", "es"), ("mandarin", "zh"), ("pt-BR", "pt"), ("zh_TW", "zh")]
        {
            assert_eq!(Language::find(text).map(|language| language.code), Some(code), "{text}");
        }
        assert_eq!(Language::find("klingon"), None);
        assert_eq!(Language::find(""), None);
    }

    #[test]
    fn codes_and_names_are_there_once() {
        for (index, language) in LANGUAGES.into_iter().enumerate() {
            assert_eq!(Language::find(language.code).map(Language::index), Some(index));
            assert_eq!(Language::find(language.name).map(Language::index), Some(index));
        }
    }
}
