//! How much a text repeats itself.

use std::io::Write;

use flate2::{Compression, write::ZlibEncoder};

/// Bytes of `text` over its bytes compressed by zlib at its usual level: ordinary speech has 1 to 2, a loop more.
/// (`compression_ratio` of openai/whisper's utils.py.) 0 for no text.
pub(crate) fn compression_ratio(text: &str) -> f32 {
    if text.is_empty() {
        return 0.0;
    }
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::new(6));
    // Writing to memory does not fail.
    let compressed = encoder.write_all(text.as_bytes()).and_then(|()| encoder.finish()).unwrap_or_default();
    text.len() as f32 / compressed.len().max(1) as f32
}

#[cfg(test)]
mod tests {
    use super::compression_ratio;

    #[test]
    fn loops_compress_and_speech_does_not() {
        let said = " And so my fellow Americans ask not what your country can do for you, ask what you can do for your country.";
        let spoken = compression_ratio(said);
        // Python: len(said) / len(zlib.compress(said.encode())) is 1.3704.
        assert!((spoken - 1.37).abs() < 0.05, "{spoken}");
        assert!(compression_ratio(&" Thank you.".repeat(40)) > 10.0);
        assert_eq!(compression_ratio(""), 0.0);
    }
}
