"""Memory does not grow with the number of transitions."""

import gc
from pathlib import Path

import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit
from reward_models import PixelReward

import vlmrm_gym
from vlmrm_gym.data.replay import ReplayBuffer
from vlmrm_gym.tasks.cartpole import CartPole

PAGE = 4096


class SmallReward(PixelReward):
    """Has cart-pole drawn with few pixels: the drawing is not what is tested."""

    @staticmethod
    def render_size(height, width):
        return 4, 6


def cart_pole():
    return TimeLimit(CartPole(render_mode="rgb_array"), 50)


def resident():
    """Bytes of this process in memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


@pytest.mark.slow
def test_memory_is_flat_over_200_000_cart_pole_transitions(capsys):
    """A single float64 kept for each transition would be 8 bytes a transition."""
    envs = vlmrm_gym.VLMRewardVectorEnv([cart_pole] * 20, reward="test_memory:SmallReward", overlap=True)
    buffer = ReplayBuffer(2_000, envs)
    observations, infos = envs.reset(seed=0)
    actions = np.random.default_rng(0).integers(0, 2, (51, 20))
    transitions, memory, stepped, steps = [], [], 0, 0
    while stepped < 200_000:
        action, steps = actions[steps % 51], steps + 1
        results = envs.step(action)
        buffer.add(observations, action, *results)
        observations, infos = results[0], results[4]
        stepped += int(infos["_vlm_step_index"].sum())
        if stepped // 5_000 > len(memory):
            transitions.append(stepped)
            memory.append(resident())
    envs.close()
    slope = float(np.polyfit(transitions[8:], memory[8:], 1)[0])
    with capsys.disabled():
        print(f"\n{stepped:,} transitions: {slope:+.2f} bytes of memory a transition after the first 40,000")
    assert slope < 4
