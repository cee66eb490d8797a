"""The bundled model's tokenizer: the byte pair encoding of OpenAI's CLIP, as in open_clip, without importing that."""

import gzip
import html
import math
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import ftfy
import regex
import torch

from vlmrm_gym.rewards.tiny.network import CONTEXT_LENGTH

NUM_MERGES = 48_894
_SPECIAL = "<start_of_text>", "<end_of_text>"
_WORDS = regex.compile(
    "|".join(_SPECIAL) + r"|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+", regex.IGNORECASE
)


class Tokenizer:
    """Maps texts to tokens."""

    context_length = CONTEXT_LENGTH

    def __init__(self) -> None:
        package = find_spec("open_clip")  # does not import it
        assert package is not None
        assert package.origin is not None
        file = Path(package.origin).with_name("bpe_simple_vocab_16e6.txt.gz")
        pairs = gzip.decompress(file.read_bytes()).decode().split("\n")[1 : 1 + NUM_MERGES]
        self._characters = _byte_characters()
        single = list(self._characters.values())
        symbols = [*single, *(f"{one}</w>" for one in single), *(pair.replace(" ", "") for pair in pairs), *_SPECIAL]
        self._ids = {symbol: number for number, symbol in enumerate(symbols)}
        self._ranks = {pair: rank for rank, pair in enumerate(pairs)}

    def __call__(self, texts: Sequence[str]) -> torch.Tensor:
        """Encode texts as tokens, with start and end tokens, and zeros after them: int64 (len(texts), 77)."""
        tokens = torch.zeros(len(texts), CONTEXT_LENGTH, dtype=torch.long)
        start, end = (self._ids[special] for special in _SPECIAL)
        for row, text in zip(tokens, texts, strict=True):
            ids = [start, *self.encode(text), end]
            row[: len(ids)] = torch.tensor(ids)
        return tokens

    def encode(self, text: str) -> list[int]:
        """Encode a text as tokens, without start and end tokens."""
        clean = " ".join(html.unescape(html.unescape(ftfy.fix_text(text))).split()).lower()
        words = ("".join(self._characters[byte] for byte in word.encode()) for word in _WORDS.findall(clean))
        return [self._ids[symbol] for word in words for symbol in self._split(word)]

    def _split(self, word: str) -> list[str]:
        """Join the neighbouring symbols that come first in the list of merges, until no more can be joined."""
        if word in _SPECIAL:
            return [word]
        symbols = [*word[:-1], f"{word[-1]}</w>"]
        while len(symbols) > 1:
            pairs = [f"{first} {second}" for first, second in pairwise(symbols)]
            best = min(pairs, key=lambda pair: self._ranks.get(pair, math.inf))
            if best not in self._ranks:
                break
            joined, i = [], 0
            while i < len(symbols):
                count = 2 if i < len(pairs) and pairs[i] == best else 1
                joined.append("".join(symbols[i : i + count]))
                i += count
            symbols = joined
        return symbols


def _byte_characters() -> dict[int, str]:
    """Map each byte to a printable character: itself if it is one, else one from 256 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {**{byte: chr(byte) for byte in printable}, **{byte: chr(256 + n) for n, byte in enumerate(others)}}
