//! The most common words of a language, which no vocabulary may replace.

use std::{collections::HashSet, sync::LazyLock};

macro_rules! lists {
    ($($language:literal)*) => {
        /// The 10,000 most common words of a language, in small letters; nothing for a language without a list.
        pub(super) fn common_words(language: &str) -> Option<&'static HashSet<&'static str>> {
            match language {
                $($language => {
                    static WORDS: LazyLock<HashSet<&'static str>> = LazyLock::new(|| {
                        include_str!(concat!("../../../../assets/words/", $language, ".txt")).lines().collect()
                    });
                    Some(&WORDS)
                })*
                _ => None,
            }
        }
    };
}

lists!("en" "de" "es" "fr" "it" "nl" "pt");
