#!/usr/bin/env python3
"""Makes vocabulary files as llama.cpp's `models/ggml-vocab-*.gguf` of those of which it has none: scripts/vocab/gguf.py FOLDER OUT.

Reads `cl100k_base.tiktoken`, `o200k_base.tiktoken` and `tekken_240718.json` (`src/measure/near/vocab/README.md` says where they are
from), as far as the folder has them, and writes `ggml-vocab-NAME.gguf`. `benches/estimates.rs` takes them for the truth where they lie
in `.cache/vocab`. A merge is any two words that make a third, in the order of that third, as conversions of such models to GGUF have
it; the special tokens are those that the chat templates of gpt-oss, Granite 4 and Mistral's models name.
"""

import struct
import sys
from pathlib import Path

import pack

NORMAL, CONTROL = 1, 3
UINT32, FLOAT32, STRING, ARRAY, INT32 = 4, 6, 8, 9, 5
GPT_OSS = "startoftext endoftext return constrain channel start end message call"
GRANITE = "end_of_text start_of_role end_of_role"
TAGS = "tool_call tool_response think"
MISTRAL = "INST AVAILABLE_TOOLS TOOL_RESULTS SYSTEM_PROMPT TOOL_CONTENT THINK"
MISTRAL_ALONE = "TOOL_CALLS ARGS CALL_ID IMG IMG_BREAK IMG_END PREFIX MIDDLE SUFFIX"


def bars(names):
    return [f"<|{name}|>" for name in names.split()]


def pairs(names, opening, closing):
    return [opening + slash + name + closing for name in names.split() for slash in ("", "/")]


# By name: the file, what llama.cpp calls its expression, the special tokens, and which of them begin and end a text.
MODELS = {
    "o200k": ("o200k_base.tiktoken", "gpt-4o", bars(GPT_OSS), ("<|startoftext|>", "<|return|>")),
    "cl100k": ("cl100k_base.tiktoken", "dbrx", bars(GRANITE) + pairs(TAGS, "<", ">"), ("<|end_of_text|>",) * 2),
    "tekken": (
        "tekken_240718.json",
        "tekken",
        ["<unk>", "<s>", "</s>", *pairs(MISTRAL, "[", "]"), *(f"[{name}]" for name in MISTRAL_ALONE.split())],
        ("<s>", "</s>"),
    ),
}


def merges(words):
    """Any two words that make a third one, in the order of the third."""
    ranks = {word: rank for rank, word in enumerate(words)}
    for rank, word in enumerate(words):
        for at in range(1, len(word)):
            first, second = word[:at], word[at:]
            if max(ranks.get(first, rank), ranks.get(second, rank)) < rank:
                yield first, second


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def entry(key, kind, data):
    return string(key) + struct.pack("<I", kind) + data


def array(key, kind, items):
    return entry(key, ARRAY, struct.pack("<IQ", kind, len(items)) + b"".join(items))


def gguf(words, expression, special, ends):
    """A GGUF file of version 3 without tensors."""
    letter = {byte: char for char, byte in pack.letters().items()}
    spelled = ["".join(map(letter.get, word)) for word in words]
    merged = [" ".join("".join(map(letter.get, part)) for part in parts) for parts in merges(words)]
    tokens = spelled + special
    kinds = [NORMAL] * len(words) + [CONTROL] * len(special)
    number = {token: at for at, token in enumerate(tokens)}
    # What a model of this architecture must tell, whatever it is.
    sizes = {"block_count": 1, "context_length": 8192, "embedding_length": 64, "feed_forward_length": 64}
    sizes |= {"attention.head_count": 1, "vocab_size": len(tokens)}
    entries = [
        entry("general.architecture", STRING, string("llama")),
        *(entry(f"llama.{key}", UINT32, struct.pack("<I", size)) for key, size in sizes.items()),
        entry("llama.attention.layer_norm_rms_epsilon", FLOAT32, struct.pack("<f", 1e-5)),
        entry("tokenizer.ggml.model", STRING, string("gpt2")),
        entry("tokenizer.ggml.pre", STRING, string(expression)),
        array("tokenizer.ggml.tokens", STRING, list(map(string, tokens))),
        array("tokenizer.ggml.token_type", INT32, [struct.pack("<i", kind) for kind in kinds]),
        array("tokenizer.ggml.merges", STRING, list(map(string, merged))),
        entry("tokenizer.ggml.bos_token_id", UINT32, struct.pack("<I", number[ends[0]])),
        entry("tokenizer.ggml.eos_token_id", UINT32, struct.pack("<I", number[ends[1]])),
    ]
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries)) + b"".join(entries)


def main(folder, out):
    out.mkdir(parents=True, exist_ok=True)
    for name, (file, expression, special, ends) in MODELS.items():
        if (folder / file).exists():
            words = pack.words(folder / file)
            (out / f"ggml-vocab-{name}.gguf").write_bytes(gguf(words, expression, special, ends))
            print(f"{name}: {len(words)} words, {len(special)} special tokens")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*map(Path, sys.argv[1:]))
