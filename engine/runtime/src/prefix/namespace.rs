//! What identifies computed state: where it is valid, and the tokens that lead to it.

use std::fmt;

/// What must be the same for computed state to be of use: tokens alone do not say what was computed from them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Namespace {
    /// The model: a digest of its configuration and weights.
    pub model: String,
    /// The adapter that was mounted, by a digest of its contents.
    pub adapter: Option<String>,
    /// How keys and values are computed and held, of [`linnet_compute::KvStore::kept_format`].
    pub kv_format: String,
    /// What stands behind the tokens of images and sounds, by a digest.
    pub media: Option<String>,
}

impl Namespace {
    /// The key that the first block's key is made from.
    #[must_use]
    pub fn key(&self) -> BlockKey {
        let mut hasher = blake3::Hasher::new();
        for part in [Some(&self.model), self.adapter.as_ref(), Some(&self.kv_format), self.media.as_ref()] {
            // Lengths keep neighbours apart, and an empty part from none.
            hasher.update(&part.map_or(u64::MAX, |part| part.len() as u64).to_le_bytes());
            hasher.update(part.map_or(&[], |part| part.as_bytes()));
        }
        BlockKey(*hasher.finalize().as_bytes())
    }
}

/// Names a block by all that it depends on: the namespace, the tokens before it, its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockKey(pub [u8; 32]);

impl BlockKey {
    /// The key of the block of `tokens` that follows this one.
    #[must_use]
    pub fn followed_by(&self, tokens: &[u32]) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.0);
        for token in tokens {
            hasher.update(&token.to_le_bytes());
        }
        Self(*hasher.finalize().as_bytes())
    }
}

impl fmt::Debug for BlockKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..6].iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_tell_namespaces_histories_and_tokens_apart() {
        let namespace = |model: &str, adapter: Option<&str>, kv_format: &str, media: Option<&str>| {
            let (adapter, media) = (adapter.map(str::to_owned), media.map(str::to_owned));
            Namespace { model: model.into(), adapter, kv_format: kv_format.into(), media }.key()
        };
        let keys = [
            namespace("m", None, "f", None),
            namespace("mf", None, "", None),
            namespace("m", Some(""), "f", None),
            namespace("m", Some("f"), "f", None),
            namespace("m", None, "f", Some("")),
            namespace("m", None, "f", None).followed_by(&[1, 2]),
            namespace("m", None, "f", None).followed_by(&[1]).followed_by(&[2]),
            namespace("m", None, "f", None).followed_by(&[2]),
        ];
        for (number, key) in keys.iter().enumerate() {
            assert!(!keys[..number].contains(key), "{number}");
        }
    }
}
