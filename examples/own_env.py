"""A reward for an environment of your own: anything that renders arrays.

python examples/own_env.py
"""

import gymnasium as gym

import vlmrm_gym


class Pendulum(gym.Wrapper):
    """Replace this by your environment. Its frames are stored, because vlmrm_gym cannot restore its states."""

    def __init__(self) -> None:
        super().__init__(gym.make("Pendulum-v1", render_mode="rgb_array", max_episode_steps=50))


# The bundled model knows only its own scenes. With a network leave `model` out: it is ViT-B-32 then.
envs = vlmrm_gym.VLMRewardVectorEnv([Pendulum] * 4, prompt="an upright pole", model="tiny")
observations, infos = envs.reset(seed=0)
arrived = []
while len(arrived) < envs.num_envs:  # rewards arrive when an episode ends
    observations, rewards, terminations, truncations, infos = envs.step(envs.action_space.sample())
    arrived += vlmrm_gym.read_late(infos)
print("VLM returns:", [f"{late.rewards.sum():.2f}" for late in arrived])
envs.close()
