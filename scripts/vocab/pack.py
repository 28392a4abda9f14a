#!/usr/bin/env python3
"""Packs the words of vocabularies for `src/measure/near`: scripts/vocab/pack.py FOLDER.

Reads those of the files named in `SOURCES` that the folder has, and writes `src/measure/near/vocab/NAME.bin`: zlib over the number of
words (u32, little endian), their lengths (a byte each) and their bytes, in the order in which a tokenizer prefers to merge them. Words
are plain bytes: the letters that stand for bytes in byte-level BPE are taken back, and SentencePiece's mark for a space is a space.
Only what a merge can make is kept: no control tokens, no byte tokens, nothing above 255 bytes. Where the files come from stands in
`src/measure/near/vocab/README.md`.
"""

import base64
import json
import struct
import sys
import zlib
from pathlib import Path

GGUF = ["qwen2", "gemma-4", "phi-3", "deepseek-llm", "starcoder", "falcon", "gpt-2"]
SOURCES = {name: f"ggml-vocab-{name}.gguf" for name in GGUF} | {
    "o200k": "o200k_base.tiktoken",
    "tekken": "tekken_240718.json",
    "mistral": "tokenizer.model.v1",
}
OUT = Path(__file__).resolve().parents[2] / "src/measure/near/vocab"
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
NORMAL = 1


class Gguf:
    """The metadata of a GGUF file (version 3, little endian)."""

    def __init__(self, path):
        self.bytes, self.at = path.read_bytes(), 4
        assert self.bytes[:4] == b"GGUF", path
        _version, _tensors, keys = self.scalar("I"), self.scalar("Q"), self.scalar("Q")
        self.values = {}
        for _ in range(keys):
            key = self.string().decode()
            self.values[key.removeprefix("tokenizer.ggml.")] = self.value(self.scalar("I"))

    def scalar(self, kind):
        (value,) = struct.unpack_from("<" + kind, self.bytes, self.at)
        self.at += struct.calcsize("<" + kind)
        return value

    def string(self):
        length = self.scalar("Q")
        self.at += length
        return self.bytes[self.at - length : self.at]

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            inner, length = self.scalar("I"), self.scalar("Q")
            return [self.value(inner) for _ in range(length)]
        return self.scalar(SCALARS[kind])


def letters():
    """The byte that each letter of byte-level BPE stands for (GPT-2's `bytes_to_unicode`)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(others)}


def merged(first, merges):
    """The first words, and each further word where a merge first makes it."""
    return list(dict.fromkeys([*first, *merges]))


def words(path):
    """The words of a vocabulary, most preferred first."""
    if path.suffix == ".tiktoken":
        return of_tiktoken(path)
    if path.suffix == ".json":
        return of_tekken(path)
    if ".model" in path.suffixes:
        return of_sentencepiece(path)
    return of_gguf(Gguf(path).values)


def of_tiktoken(path):
    """A line a word: its bytes in base64 and its rank, which is its place in the order of merges."""
    ranked = (line.split() for line in path.read_bytes().splitlines())
    return [base64.b64decode(word) for word, _ in sorted(ranked, key=lambda pair: int(pair[1]))]


def of_tekken(path):
    """Mistral's `tekken.json`, which has more words than the models: those of the lowest ranks, as many as special tokens leave."""
    file = json.loads(path.read_text())
    config = file["config"]
    most = config["default_vocab_size"] - config["default_num_special_tokens"]
    ranked = sorted(file["vocab"], key=lambda word: word["rank"])
    return [base64.b64decode(word["token_bytes"]) for word in ranked[:most]]


def of_sentencepiece(path):
    """A SentencePiece model: a protobuf message, whose fields 1 are the pieces, each of a text, a score and a type (fields 1 to 3)."""
    pieces = [dict(fields(piece)) for number, piece in fields(path.read_bytes()) if number == 1]
    normal = [piece for piece in pieces if piece.get(3, NORMAL) == NORMAL]
    scores = {piece[1]: struct.unpack("<f", piece.get(2, bytes(4)))[0] for piece in normal}
    return [word.replace("▁".encode(), b" ") for word in sorted(scores, key=lambda word: -scores[word])]


def fields(message):
    """The numbers and values of a protobuf message's fields."""
    at = 0

    def varint():
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = message[at]
            at, value, shift = at + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    while at < len(message):
        number, wire = divmod(varint(), 8)
        if wire == 0:
            yield number, varint()
            continue
        length = varint() if wire == 2 else {1: 8, 5: 4}[wire]
        yield number, message[at : at + length]
        at += length


def of_gguf(gguf):
    """The words of llama.cpp's vocabulary files, by kind of tokenizer."""
    model, tokens = gguf["model"], gguf["tokens"]
    normal = [i for i, kind in enumerate(gguf["token_type"]) if kind == NORMAL]
    if model == b"gpt2":
        byte = letters()
        spelled = ("".join(m.decode().split(" ", 1)) for m in gguf["merges"])
        return merged((bytes([b]) for b in range(256)), (bytes(byte[c] for c in m) for m in spelled))
    if model == b"gemma4":
        single = (tokens[i] for i in normal if len(tokens[i].decode()) == 1)
        # A merge's first part may be a space itself; the divider is the next one.
        parts = ((m[: m.index(b" ", 1)], m[m.index(b" ", 1) + 1 :]) for m in gguf["merges"])
        ordered = merged(single, (a + b for a, b in parts))
    else:
        ordered = [tokens[i] for i in sorted(normal, key=lambda i: (-gguf["scores"][i], i))]
    return [word.replace("▁".encode(), b" ") for word in ordered]


def main(folder):
    OUT.mkdir(parents=True, exist_ok=True)
    for name, file in SOURCES.items():
        if not (folder / file).exists():
            continue
        kept = [w for w in words(folder / file) if 0 < len(w) < 256]
        data = struct.pack("<I", len(kept)) + bytes(map(len, kept)) + b"".join(kept)
        packed = zlib.compress(data, 9)
        (OUT / f"{name}.bin").write_bytes(packed)
        print(f"{name}: {len(kept)} words, {len(packed)} bytes")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
