"""The training captions of the bundled model."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from bundled_model.captions import UNRELATED, Meaning, generate
from bundled_model.domains import DOMAINS
from bundled_model.domains.cartpole import SIDED
from bundled_model.grammar import read_grammar

HELD_OUT = [json.loads(file.read_text()) for file in (Path(__file__).parent / "heldout").glob("*.json")]


@pytest.mark.slow
def test_no_training_caption_is_a_held_out_prompt():
    from bundled_model.tokens import vocabulary
    from bundled_model.train import Args

    generated = {text.lower().strip(" .!") for text, _ in generate(Args().captions, Args().seed, vocabulary())}
    phrasings = [text for kinds in HELD_OUT for texts in kinds.values() for text in texts]
    assert len(phrasings) > 400
    assert not [text for text in phrasings if text.lower().strip(" .!") in generated]


def test_captions_name_left_and_right_equally_often_have_no_unfilled_slots_and_are_reproducible():
    """Whatever is said of the left is said of the right, where the pole leans."""
    assert SIDED["left"].keys() == SIDED["right"].keys()
    captions = generate(20_000, seed=1, vocabulary=["lorem", "ipsum"])
    texts = [text for text, meaning in captions if meaning.domain == "cartpole"]
    left, right = (sum(side in text.split() for text in texts) for side in ("left", "right"))
    assert 0.9 < left / right < 1.1
    assert not [text for text, _ in captions if "{" in text or "}" in text or not text.strip()]
    assert captions == generate(20_000, seed=1, vocabulary=["lorem", "ipsum"])


def test_every_slot_is_defined():
    for grammar in (*(domain.grammar for domain in DOMAINS.values()), UNRELATED):
        known = {*grammar, *SIDED["left"], "x", "say", "side", "degrees", "no"}
        slots = {slot for choices in grammar.values() for text in choices for slot in re.findall(r"\{(\w+)\}", text)}
        assert not slots - known


def test_a_grammar_file_has_slots_weights_and_quotes(tmp_path):
    """`2x` repeats a choice, quotes keep spaces, comments and empty lines count for nothing."""
    (tmp_path / "poses.txt").write_text(
        '# Poses.\n\n[pose]\n2x {very}up\n90° to the left\n[very]\n"almost "\n2x ""\n', encoding="utf-8"
    )
    expected = {"pose": ["{very}up", "{very}up", "90° to the left"], "very": ["almost ", "", ""]}
    assert read_grammar("poses", tmp_path) == expected


def test_the_files_of_a_folder_are_one_grammar(tmp_path):
    """A choice above the first slot, and a slot's name of two words, would lose or misplace words: refused."""
    (tmp_path / "robot").mkdir()
    (tmp_path / "robot" / "sit.txt").write_text("[pose]\nsitting\n[sit]\nsits")
    (tmp_path / "robot" / "lie.txt").write_text("[pose]\nlying")
    assert read_grammar("robot", tmp_path) == {"pose": ["lying", "sitting"], "sit": ["sits"]}
    for text in ("sitting\n[pose]", "[pose]\n[sit down]\nsits"):
        (tmp_path / "poses.txt").write_text(text)
        with pytest.raises(ValueError, match=r"poses.txt, line \d must be a slot's name in brackets"):
            read_grammar("poses", tmp_path)


def test_targets_are_cosine_similarities_that_vary_over_states(rng):
    for name, domain in DOMAINS.items():
        described = domain.describe(domain.sample_states(60, rng))
        meanings = {meaning for _, meaning in generate(3_000, seed=3) if meaning.domain == name}
        assert Meaning(name) in meanings
        for meaning in meanings:
            truth = domain.similarity(meaning.attributes, described)
            assert truth.shape == (60,)
            assert np.abs(truth).max() <= 1
            assert (np.ptp(truth) > 0.1) == bool(meaning.attributes)
