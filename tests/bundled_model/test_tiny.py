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
def test_out_of_domain_prompts_warn(recwarn):
    for prompt in UNRELATED:
        CLIPReward("tiny", prompt=prompt)
    print(f"{len(recwarn)} of {len(UNRELATED)} unrelated prompts warn")
    assert len(recwarn) >= 0.9 * len(UNRELATED)


@pytest.mark.filterwarnings("always:The bundled model does not know")
def test_in_domain_prompts_do_not_warn(recwarn):
    for prompt in RELATED:
        CLIPReward("tiny", prompt=prompt)
    print(f"{len(recwarn)} of {len(RELATED)} related prompts warn")
    assert len(recwarn) <= 0.05 * len(RELATED)


def test_the_warning_says_what_to_do():
    with pytest.warns(UserWarning, match=r"'a plate of spaghetti'.*model=\"ViT-B-32/laion2b_s34b_b79k\""):
        gym.make("VLMRM/CartPole-v1", prompt="a plate of spaghetti")


def test_the_package_stays_below_25_megabytes():
    package = Path(vlmrm_gym.__file__).parent
    assert (
        sum(file.stat().st_size for file in package.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
        < 25e6
    )
