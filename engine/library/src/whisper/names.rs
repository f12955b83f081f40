//! What others call the tensors of a Whisper model.

/// Tensors that our folders do not hold: positions that are computed, the head that is the embedding, heads that
/// config.json names.
const LEFT_OUT: [&str; 6] = [
    "encoder.positional_embedding",
    "encoder._positional_embedding",
    "alignment_heads",
    "model.encoder.embed_positions.weight",
    "encoder.embed_positions.weight",
    "proj_out.weight",
];

/// Our name of a tensor of OpenAI's, mlx-whisper's or whisper.cpp's, which differ in the feed-forward layers alone;
/// `None` for what is left out.
pub(super) fn from_openai(name: &str) -> Option<String> {
    if LEFT_OUT.contains(&name) {
        return None;
    }
    Some(name.replace(".mlp.0.", ".mlp1.").replace(".mlp.2.", ".mlp2."))
}

/// Our name of a tensor of Hugging Face's `WhisperForConditionalGeneration`; `None` for what is left out. A name that is
/// none of theirs stays as it is, so that it can be told.
pub(super) fn from_huggingface(name: &str) -> Option<String> {
    if LEFT_OUT.contains(&name) {
        return None;
    }
    let name = name.strip_prefix("model.").unwrap_or(name);
    let whole = match name {
        "decoder.embed_tokens.weight" => Some("decoder.token_embedding.weight"),
        "decoder.embed_positions.weight" => Some("decoder.positional_embedding"),
        "encoder.layer_norm.weight" => Some("encoder.ln_post.weight"),
        "encoder.layer_norm.bias" => Some("encoder.ln_post.bias"),
        "decoder.layer_norm.weight" => Some("decoder.ln.weight"),
        "decoder.layer_norm.bias" => Some("decoder.ln.bias"),
        _ => None,
    };
    if let Some(whole) = whole {
        return Some(whole.to_owned());
    }
    let Some((part, rest)) = name.split_once(".layers.") else { return Some(name.to_owned()) };
    let Some((layer, rest)) = rest.split_once('.') else { return Some(name.to_owned()) };
    let (module, suffix) = rest.rsplit_once('.').unwrap_or((rest, ""));
    let ours = match module {
        "self_attn_layer_norm" => "attn_ln",
        "encoder_attn_layer_norm" => "cross_attn_ln",
        "final_layer_norm" => "mlp_ln",
        "fc1" => "mlp1",
        "fc2" => "mlp2",
        "self_attn.q_proj" => "attn.query",
        "self_attn.k_proj" => "attn.key",
        "self_attn.v_proj" => "attn.value",
        "self_attn.out_proj" => "attn.out",
        "encoder_attn.q_proj" => "cross_attn.query",
        "encoder_attn.k_proj" => "cross_attn.key",
        "encoder_attn.v_proj" => "cross_attn.value",
        "encoder_attn.out_proj" => "cross_attn.out",
        other => other,
    };
    Some(format!("{part}.blocks.{layer}.{ours}.{suffix}"))
}
