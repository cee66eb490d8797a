"""The training captions of the bundled model."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from bundled_model.captions import Meaning, generate
from bundled_model.domains import DOMAINS
from bundled_model.grammars import cartpole, unrelated

HELD_OUT = [json.loads(file.read_text()) for file in (Path(__file__).parent / "heldout").glob("*.json")]


@pytest.mark.slow
def test_no_training_caption_is_a_held_out_prompt():
    """No training caption is one of them."""
    from bundled_model.tokens import vocabulary
    from bundled_model.train import Args

    generated = {text.lower().strip(" .!") for text, _ in generate(Args().captions, Args().seed, vocabulary())}
    phrasings = [text for kinds in HELD_OUT for texts in kinds.values() for text in texts]
    assert len(phrasings) > 400
    assert not [text for text in phrasings if text.lower().strip(" .!") in generated]


def test_captions_name_left_and_right_equally_often():
    """Whatever is said of the left is said of the right, where the pole leans."""
    assert cartpole.SIDED["left"].keys() == cartpole.SIDED["right"].keys()
    texts = [text for text, meaning in generate(40_000, seed=1) if meaning.domain == "cartpole"]
    left, right = (sum(side in text.split() for text in texts) for side in ("left", "right"))
    assert 0.9 < left / right < 1.1


def test_captions_have_no_unfilled_slots_and_are_reproducible():
    captions = generate(20_000, seed=2, vocabulary=["lorem", "ipsum"])
    assert not [text for text, _ in captions if "{" in text or "}" in text or not text.strip()]
    assert captions == generate(20_000, seed=2, vocabulary=["lorem", "ipsum"])


@pytest.mark.parametrize("grammar", [*(domain.grammar for domain in DOMAINS.values()), unrelated.GRAMMAR])
def test_every_slot_is_defined(grammar):
    known = {*grammar, *cartpole.SIDED["left"], "x", "say", "side", "degrees", "no"}
    slots = {slot for choices in grammar.values() for text in choices for slot in re.findall(r"\{(\w+)\}", text)}
    assert not slots - known


@pytest.mark.parametrize("name", DOMAINS)
def test_targets_are_cosine_similarities_that_vary_over_states(name, rng):
    domain = DOMAINS[name]
    described = domain.describe(domain.sample_states(60, rng))
    meanings = {meaning for _, meaning in generate(3_000, seed=3) if meaning.domain == name}
    assert Meaning(name) in meanings
    for meaning in meanings:
        truth = domain.similarity(meaning.attributes, described)
        assert truth.shape == (60,)
        assert np.abs(truth).max() <= 1
        assert (np.ptp(truth) > 0.1) == bool(meaning.attributes)
