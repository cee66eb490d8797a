"""The parts of LeRobot 0.6 that a reward model is loaded by, with a model that measures greys.

Written by its interface: the package itself needs Python 3.12, and its models a network.
"""

import sys
from types import ModuleType, SimpleNamespace

CALLS = []


class Config(SimpleNamespace):
    features = ("observation.images.top", "observation.state")

    @classmethod
    def from_pretrained(cls, folder):
        CALLS.append(("config", str(folder)))
        settings = {name: vars(cls)[name] for name in ("image_key", "max_frames") if name in vars(cls)}
        return cls(input_features=dict.fromkeys(cls.features), device=None, **settings)


class Model:
    def __init__(self, config):
        self.config = config

    def eval(self):
        return self

    def compute_reward(self, batch):
        CALLS.append(("batch", {name: getattr(value, "shape", value) for name, value in batch.items()}))
        frames = batch["observation.images.top"]
        frames = frames if frames.ndim == 4 else frames[:, -1]
        return frames.mean((1, 2, 3)) + batch["offset"]


class Pipeline:
    def __init__(self, offset):
        self.offset = offset

    def __call__(self, batch):
        return {**batch, "offset": self.offset}

    @classmethod
    def from_pretrained(cls, folder, config_filename, overrides):
        CALLS.append(("pipeline", config_filename, overrides))
        return cls(1.0)


def install(monkeypatch, **settings):
    CALLS.clear()
    config = type("OwnConfig", (Config,), settings)
    modules = {
        "lerobot": {},
        "lerobot.configs": {},
        "lerobot.configs.rewards": {"RewardModelConfig": config},
        "lerobot.processor": {"PolicyProcessorPipeline": Pipeline},
        "lerobot.rewards": {},
        "lerobot.rewards.factory": {
            "make_reward_model": Model,
            "make_reward_pre_post_processors": lambda config: (Pipeline(0.0), None),
        },
    }
    for name, attributes in modules.items():
        module = ModuleType(name)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, name, module)
    sys.modules["lerobot.rewards"].factory = sys.modules["lerobot.rewards.factory"]
