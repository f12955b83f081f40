"""Writes the tiny tokenizers of this folder: a byte-level BPE and a SentencePiece-like BPE with byte fallback.

Needs the packages of ../templates/requirements.txt. Only a few pieces are learned, so that most of a text, and all
of every emoji, falls into single bytes.
"""

import json
import pathlib

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).parent
TEXT = ["Hello world, hello there. The quick brown fox; the world is here."] * 4


def byte_level():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        TEXT,
        trainers.BpeTrainer(
            vocab_size=290,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=["<|begin|>", "<|im_start|>", "<|im_end|>"],
            show_progress=False,
        ),
    )
    tokenizer.add_tokens([AddedToken("<tool_call>", special=False)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", 0)])
    # The cut that a training script left behind, as some published files have it.
    tokenizer.enable_truncation(8)
    write("byte_level", tokenizer, "<|begin|>", "<|im_end|>")


def byte_fallback():
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for byte in range(256):
        vocab[f"<0x{byte:02X}>"] = len(vocab)
    for character in ["▁", *"abcdefghijklmnopqrstuvwxyz", *"HT.,;"]:
        vocab[character] = len(vocab)
    merges = []
    for left, right in [("▁", "H"), ("e", "l"), ("el", "l"), ("▁H", "ell"), ("▁Hell", "o"), ("▁", "w"), ("o", "r"),
                        ("▁w", "or"), ("l", "d"), ("▁wor", "ld"), ("▁", "▁")]:
        merges.append((left, right))
        vocab[left + right] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    write("byte_fallback", tokenizer, "<s>", "</s>")


def write(name, tokenizer, bos, eos):
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    content = json.loads(tokenizer.to_str())
    (folder / "tokenizer.json").write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n")
    config = {"bos_token": bos, "eos_token": {"content": eos, "special": True}, "unk_token": None}
    (folder / "tokenizer_config.json").write_text(json.dumps(config) + "\n")


byte_level()
byte_fallback()
