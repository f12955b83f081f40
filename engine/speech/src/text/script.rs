//! Chinese in the script that was asked for.

use ferrous_opencc::{OpenCC, config::BuiltinConfig};

use super::TextError;

/// A way to write Chinese.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChineseScript {
    /// Simplified (zh-Hans).
    Simplified,
    /// Traditional (zh-Hant), OpenCC's standard.
    Traditional,
    /// Traditional as in Taiwan.
    TraditionalTaiwan,
    /// Traditional as in Hong Kong.
    TraditionalHongKong,
}

impl ChineseScript {
    /// The script of a BCP 47 tag, such as "zh-Hans".
    #[must_use]
    pub fn from_tag(tag: &str) -> Option<Self> {
        match tag.to_ascii_lowercase().as_str() {
            "zh-hans" | "zh-cn" | "zh-sg" => Some(Self::Simplified),
            "zh-hant" => Some(Self::Traditional),
            "zh-hant-tw" | "zh-tw" => Some(Self::TraditionalTaiwan),
            "zh-hant-hk" | "zh-hk" => Some(Self::TraditionalHongKong),
            _ => None,
        }
    }
}

/// Converts into one script. Whisper mixes them.
pub(super) struct ScriptConverter {
    script: ChineseScript,
    tables: OpenCC,
}

impl std::fmt::Debug for ScriptConverter {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("ScriptConverter").field(&self.script).finish()
    }
}

impl ScriptConverter {
    pub(super) fn new(script: ChineseScript) -> Result<Self, TextError> {
        let config = match script {
            ChineseScript::Simplified => BuiltinConfig::T2s,
            ChineseScript::Traditional => BuiltinConfig::S2t,
            ChineseScript::TraditionalTaiwan => BuiltinConfig::S2tw,
            ChineseScript::TraditionalHongKong => BuiltinConfig::S2hk,
        };
        let tables =
            OpenCC::from_config(config).map_err(|error| TextError::Script { script, detail: error.to_string() })?;
        Ok(Self { script, tables })
    }

    /// Converts Chinese and Cantonese; the characters of Japanese are others and stay.
    pub(super) fn apply(&self, text: &str, language: &str) -> String {
        if matches!(language, "zh" | "yue") { self.tables.convert(text) } else { text.to_owned() }
    }
}
