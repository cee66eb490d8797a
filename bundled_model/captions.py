"""Training captions of the bundled model, each with what it states.

A caption is expanded from a small grammar and labelled with a `Meaning`: its domain and the attributes it states.
`Domain.similarity` grades every simulator state against those attributes, so each caption gives a training signal for
every image of its domain, and the learned reward increases all the way to the goal.

Imports no torch. To print a sample: `python -m bundled_model.captions`.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bundled_model.domain import Attributes
from bundled_model.domains import DOMAINS
from bundled_model.grammar import expand, read_grammar

UNRELATED_SHARE = 0.2
"""Fraction of captions that describe none of the domains."""
UNRELATED = {**read_grammar("unrelated"), "x": ["{say}"]}
"""The grammar of those captions."""
HELD_OUT = Path(__file__).parents[1] / "tests" / "bundled_model" / "heldout"


@dataclass(frozen=True)
class Meaning:
    """What a caption states."""

    domain: str | None
    """Name of the domain; None for an unrelated caption."""
    attributes: Attributes = ()
    """What it states of the environment's state."""


def generate(count: int, seed: int, vocabulary: Sequence[str] = ()) -> list[tuple[str, Meaning]]:
    """Generate captions with their meanings.

    Args:
        count: Number of captions.
        seed: The same seed gives the same captions.
        vocabulary: Noise words. They are inserted into captions, which keep their meaning, and make up some of the
            unrelated captions.
    """
    rng = random.Random(seed)
    domains = list(DOMAINS.values())
    captions: list[tuple[str, Meaning]] = []
    held_out = held_out_prompts()
    while len(captions) < count:
        if rng.random() < UNRELATED_SHARE:
            text, meaning = _unrelated(rng, vocabulary), Meaning(None)
        else:
            domain = rng.choices(domains, [domain.share for domain in domains])[0]
            statement, attributes = domain.sample_caption(rng)
            text = expand("{frame}", domain.grammar, rng, x=statement)
            text, meaning = _add_noise(text.split(), vocabulary, rng), Meaning(domain.name, attributes)
        text = " ".join(text.split())
        if normalised(text) not in held_out:
            captions.append((text, meaning))
    return captions


def held_out_prompts() -> frozenset[str]:
    """The held-out prompts of the tests, normalised: they measure the model, so no caption may be one of them."""
    lists = [json.loads(file.read_text()) for file in HELD_OUT.glob("*.json")]
    return frozenset(normalised(text) for kinds in lists for texts in kinds.values() for text in texts)


def normalised(text: str) -> str:
    """A text without capitals and final punctuation."""
    return text.lower().strip(" .!")


def _unrelated(rng: random.Random, vocabulary: Sequence[str]) -> str:
    if vocabulary and rng.random() < 0.4:
        return " ".join(rng.choices(vocabulary, k=rng.randint(1, 8)))
    return expand("{frame}", UNRELATED, rng)


def _add_noise(words: list[str], vocabulary: Sequence[str], rng: random.Random) -> str:
    """Drop articles from some captions and insert noise words into some."""
    if rng.random() < 0.15:
        words = [word for word in words if word not in ("the", "a", "is")] or words
    while vocabulary and rng.random() < 0.3:
        words.insert(rng.randint(0, len(words)), rng.choice(vocabulary))
    return " ".join(words)


if __name__ == "__main__":
    for text, meaning in generate(40, seed=0):
        print(f"{text}  [{meaning}]")
