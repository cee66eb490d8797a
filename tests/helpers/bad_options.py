"""A value that no door takes for every keyword of the environments: the error, and its words."""

from typing import Any

from conftest import TASK_PROMPT

ONE_OF = "must be one of"
TIMEOUTS = "must be a mapping of 'load', 'draw', 'encode', 'schedule' to seconds above 0 or None. Received 0 for"
BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "prompt": (3, TypeError, "must be a text or a list of texts. Received 3"),
    "goal_images": (3, TypeError, "must be files of pictures, or uint8 arrays (H, W, 3). Received 3"),
    "baseline_images": ([], ValueError, "must be from 1 to 1,000 pictures. Received 0"),
    "baseline": (TASK_PROMPT, ValueError, "must differ from `prompt`. Received"),
    "alpha": (2.0, ValueError, "must be a number from 0 to 1. Received 2.0"),
    "model": (3, TypeError, 'must be a string, such as "tiny". Received 3'),
    "precision": ("fp8", ValueError, f"{ONE_OF} 'auto', 'fp32', 'bf16', 'fp16'. Received 'fp8'"),
    "resize_mode": ("crop", ValueError, f"{ONE_OF} 'squash', 'shortest', 'longest'. Received 'crop'"),
    "batch_size": (10**10, ValueError, "must be an integer of at most 1,000,000,000. Received 10000000000"),
    "reward": ("no_such_module:f", ValueError, "must name something that can be imported here"),
    "reward_kwargs": ({"a": 1}, TypeError, "needs a `reward` to pass them to. Received no reward"),
    "device": ("cuda:77", ValueError, 'must be "auto" or a device of this machine'),
    "camera": ("no such camera", ValueError, "is for MuJoCo environments. Received 'no such camera'"),
    "combine_views": ("maximum", ValueError, f"{ONE_OF} 'min', 'mean', a function"),
    "quality": ("best", ValueError, f"{ONE_OF} 'fast', 'faithful'. Received 'best'"),
    "task_reward_weight": (float("nan"), ValueError, "must be a finite number. Received nan"),
    "scoring": ("never", ValueError, f"{ONE_OF} 'episode', 'step'. Received 'never'"),
    "score_every": (True, ValueError, "must be an integer of at least 1. Received True"),
    "num_workers": (-1, ValueError, "must be an integer of at least 0. Received -1"),
    "backend": ("cloud", ValueError, f"{ONE_OF} 'process', 'ray'. Received 'cloud'"),
    "ray_options": ([1], TypeError, 'must be a mapping such as {"num_gpus": 0.25}. Received [1]'),
    "devices": ([], ValueError, 'must be a list such as ["cuda:0", "cuda:1"]. Received []'),
    "overlap": (1, ValueError, "must be True or False. Received 1"),
    "return_features": ("yes", ValueError, "must be True or False. Received 'yes'"),
    "episode_log": (10**6, TypeError, "must be an EpisodeLog. Received 1000000"),
    "max_pending_bytes": (0, ValueError, "must be an integer of at least 1. Received 0"),
    "worker_timeouts": ({"encode": 0}, ValueError, TIMEOUTS),
    "autoreset_mode": ("never", ValueError, f"{ONE_OF} 'NextStep', 'SameStep', 'Disabled'. Received 'never'"),
}


def passed(name):
    """The keywords of an environment with the bad value of one."""
    return ({} if name == "reward" else {"prompt": TASK_PROMPT}) | {name: BAD[name][0]}
