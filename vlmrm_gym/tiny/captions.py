"""The language the bundled model learns: captions of its worlds, each with the truth it tells.

A caption is expanded from a small grammar and carries a `Meaning`: the world, and what it says of its state. A meaning
is *graded*: `World.similarity` says how well any state of the simulator fits it, so one caption teaches something about
every picture, and the reward it makes rises all the way to the goal.

Knows nothing of images, models or training. Try it: `python -m vlmrm_gym.tiny.captions`.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from vlmrm_gym.tiny.words import unrelated
from vlmrm_gym.tiny.world import Says, expand
from vlmrm_gym.tiny.worlds import WORLDS

UNRELATED_SHARE = 0.2
"""Of all captions."""


@dataclass(frozen=True)
class Meaning:
    """What a caption says."""

    world: str | None
    """The world it is about; None: something else."""
    says: Says = ()
    """What it says of the world's state."""


def generate(count: int, seed: int, vocabulary: Sequence[str] = ()) -> list[tuple[str, Meaning]]:
    """Make captions with their meanings.

    Args:
        count: How many.
        seed: Equal seeds give equal captions.
        vocabulary: Other words: they are strewn over captions, which keep their meaning, and make unrelated ones.
    """
    rng = random.Random(seed)
    worlds = list(WORLDS.values())
    captions: list[tuple[str, Meaning]] = []
    for _ in range(count):
        if rng.random() < UNRELATED_SHARE:
            text, meaning = _unrelated(rng, vocabulary), Meaning(None)
        else:
            world = rng.choices(worlds, [world.share for world in worlds])[0]
            say, says = world.say(rng)
            text = expand("{frame}", world.grammar, rng, x=say)
            text, meaning = _disturb(text.split(), vocabulary, rng), Meaning(world.name, says)
        captions.append((" ".join(text.split()), meaning))
    return captions


def _unrelated(rng: random.Random, vocabulary: Sequence[str]) -> str:
    if vocabulary and rng.random() < 0.4:
        return " ".join(rng.choices(vocabulary, k=rng.randint(1, 8)))
    return expand("{frame}", {**unrelated.GRAMMAR, "x": ["{say}"]}, rng)


def _disturb(words: list[str], vocabulary: Sequence[str], rng: random.Random) -> str:
    """Write as people do: sometimes without articles, sometimes with words that are none of the grammar's."""
    if rng.random() < 0.15:
        words = [word for word in words if word not in ("the", "a", "is")] or words
    while vocabulary and rng.random() < 0.3:
        words.insert(rng.randint(0, len(words)), rng.choice(vocabulary))
    return " ".join(words)


if __name__ == "__main__":
    for text, meaning in generate(40, seed=0):
        print(f"{text}  [{meaning}]")
