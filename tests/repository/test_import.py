"""`import vlmrm_gym` stays light."""

import importlib
import subprocess
import sys

HEAVY = ("torch", "open_clip", "torchvision", "timm", "sympy", "mujoco", "stable_baselines3", "pygame", "matplotlib")
HEAVY += ("transformers",)


def loaded_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*(name for name in {HEAVY} if name in sys.modules))"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_importing_the_package_and_the_checks_loads_nothing_heavy():
    names = ("measures", "report", "summary")
    checks = "; ".join(f"import vlmrm_gym.tools.check.{name}" for name in names)
    assert loaded_after(f"{checks}; vlmrm_gym.CLIP(prompt='a', model='ViT-B-32/laion2b_s34b_b79k')") == set()


def test_scoring_with_the_bundled_model_loads_torch_and_nothing_else_heavy():
    """open_clip also imports torchvision, timm and transformers: 0.25 GB of every worker."""
    reward = "vlmrm_gym.CLIPReward('tiny', prompt='an upright pole')"
    score = f"import numpy; {reward}(numpy.zeros((1, 9, 9, 3), 'u1'))"
    assert loaded_after(f"import vlmrm_gym.scoring.worker; {score}") == {"torch"}


def test_public_names_are_listed_and_exist():
    for module in map(importlib.import_module, ("vlmrm_gym", "vlmrm_gym.rewards", "vlmrm_gym.states")):
        for name in module.__all__:
            assert name in dir(module)
            assert getattr(module, name) is not None
        assert not hasattr(module, "CLIPRewrad")
