"""`import vlmrm_gym` stays light."""

import importlib
import subprocess
import sys

import pytest

HEAVY = (
    "torch",
    "open_clip",
    "torchvision",
    "timm",
    "sympy",
    "mujoco",
    "stable_baselines3",
    "pygame",
    "matplotlib",
    "transformers",
)


def loaded_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*(name for name in {HEAVY} if name in sys.modules))"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_importing_the_package_loads_nothing_heavy():
    assert loaded_after("import vlmrm_gym; vlmrm_gym.CLIP(prompt='a', model='ViT-B-32/laion2b_s34b_b79k')") == set()


def test_importing_the_checks_loads_nothing_heavy():
    modules = (
        "measures",
        "search",
        "report",
        "summary",
    )
    assert loaded_after(f"import {', '.join(f'vlmrm_gym.audit.{module}' for module in modules)}") == set()


def test_using_a_lazy_attribute_loads_torch():
    """The test above can fail."""
    assert "torch" in loaded_after("import vlmrm_gym; vlmrm_gym.CLIPReward")


def test_scoring_with_the_bundled_model_loads_torch_and_nothing_else_heavy():
    """open_clip also imports torchvision, timm and transformers: 0.25 GB of every worker."""
    reward = "vlmrm_gym.CLIPReward('tiny', prompt='an upright pole')"
    score = f"import numpy; {reward}(numpy.zeros((1, 9, 9, 3), 'u1'))"
    assert loaded_after(f"import vlmrm_gym.scoring.worker; {score}") == {"torch"}


@pytest.mark.parametrize("module", ["vlmrm_gym", "vlmrm_gym.rewards", "vlmrm_gym.states"])
def test_public_names_are_listed_and_exist(module):
    imported = importlib.import_module(module)
    for name in imported.__all__:
        assert name in dir(imported)
        assert getattr(imported, name) is not None


def test_unknown_attribute_is_an_attribute_error():
    import vlmrm_gym

    assert not hasattr(vlmrm_gym, "CLIPRewrad")
