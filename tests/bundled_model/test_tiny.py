"""Requirements of the bundled model in all scenes."""

import json
from pathlib import Path

import gymnasium as gym
import pytest
from conftest import HELD_OUT_FOLDER

import vlmrm_gym
from vlmrm_gym import CLIPReward

HELD_OUT: list[dict[str, list[str]]] = [json.loads(file.read_text()) for file in HELD_OUT_FOLDER.glob("*.json")]
UNRELATED = [prompt for kinds in HELD_OUT for prompt in kinds["unrelated"]]
RELATED = [prompt for kinds in HELD_OUT for kind, prompts in kinds.items() if kind != "unrelated" for prompt in prompts]


@pytest.mark.filterwarnings("always:The bundled model does not know")
def test_out_of_domain_prompts_warn_and_others_do_not(recwarn):
    warned = {}
    for prompts in (UNRELATED, RELATED):
        for prompt in prompts:
            CLIPReward("tiny", prompt=prompt)
        warned[len(prompts)] = len(recwarn.list) / len(prompts)
        recwarn.clear()
    print(f"{warned[len(UNRELATED)]:.0%} of unrelated prompts warn, {warned[len(RELATED)]:.0%} of related ones")
    assert warned[len(UNRELATED)] >= 0.9
    assert warned[len(RELATED)] <= 0.05


def test_the_warning_says_what_to_do():
    with pytest.warns(UserWarning, match=r"'a plate of spaghetti'.*model=\"ViT-B-32/laion2b_s34b_b79k\""):
        gym.make("VLMRM/CartPole-v1", prompt="a plate of spaghetti")


def test_the_package_stays_below_25_megabytes():
    files = [file for file in Path(vlmrm_gym.__file__).parent.rglob("*") if "__pycache__" not in file.parts]
    assert sum(file.stat().st_size for file in files if file.is_file()) < 25e6
