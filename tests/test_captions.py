"""The captions that the bundled model learns from."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from vlmrm_gym.tiny.captions import Meaning, generate
from vlmrm_gym.tiny.words import cartpole, unrelated
from vlmrm_gym.tiny.worlds import WORLDS

HELD_OUT = [json.loads(file.read_text()) for file in (Path(__file__).parent / "heldout").glob("*.json")]


def test_held_out_phrasings_are_held_out():
    """No training caption is one of them."""
    from vlmrm_gym.tiny.train import Args, vocabulary

    generated = {text.lower().strip(" .!") for text, _ in generate(Args().captions, Args().seed, vocabulary())}
    phrasings = [text for kinds in HELD_OUT for texts in kinds.values() for text in texts]
    assert len(phrasings) > 400
    assert not [text for text in phrasings if text.lower().strip(" .!") in generated]


def test_captions_mirror():
    """Whatever is said of the left is said of the right, where the pole leans."""
    assert cartpole.SIDED["left"].keys() == cartpole.SIDED["right"].keys()
    texts = [text for text, meaning in generate(40_000, seed=1) if meaning.world == "cartpole"]
    left, right = (sum(side in text.split() for text in texts) for side in ("left", "right"))
    assert 0.9 < left / right < 1.1


def test_captions_have_no_open_slots_and_are_reproducible():
    captions = generate(20_000, seed=2, vocabulary=["lorem", "ipsum"])
    assert not [text for text, _ in captions if "{" in text or "}" in text or not text.strip()]
    assert captions == generate(20_000, seed=2, vocabulary=["lorem", "ipsum"])


@pytest.mark.parametrize("grammar", [*(world.grammar for world in WORLDS.values()), unrelated.GRAMMAR])
def test_every_slot_is_defined(grammar):
    known = {*grammar, *cartpole.SIDED["left"], "x", "say", "side", "degrees"}
    slots = {slot for choices in grammar.values() for text in choices for slot in re.findall(r"\{(\w+)\}", text)}
    assert not slots - known


@pytest.mark.parametrize("name", WORLDS)
def test_truth_is_a_similarity_of_every_state_and_captions_tell_states_apart(name, rng):
    world = WORLDS[name]
    described = world.describe(world.sample_states(60, rng))
    meanings = {meaning for _, meaning in generate(3_000, seed=3) if meaning.world == name}
    assert Meaning(name) in meanings
    for meaning in meanings:
        truth = world.similarity(meaning.says, described)
        assert truth.shape == (60,)
        assert np.abs(truth).max() <= 1
        assert (np.ptp(truth) > 0.1) == bool(meaning.says)
