"""An environment of your own, a sentence, and plain SAC of Stable-Baselines3.

python examples/own_env.py --total-timesteps 20000

Each state is drawn and scored at once: nothing else differs from a script with ordinary rewards. The agent is saved as
own_env.zip.
"""

from dataclasses import dataclass

import gymnasium as gym
import tyro
from stable_baselines3 import SAC

import vlmrm_gym


class Pendulum(gym.Wrapper):
    """Replace this by your environment. Its frames are stored, because vlmrm_gym cannot restore its states."""

    def __init__(self) -> None:
        super().__init__(gym.make("Pendulum-v1", render_mode="rgb_array", max_episode_steps=200))


@dataclass
class Args:
    prompt: str = "an upright pole"
    """what should be seen"""
    model: str | None = "tiny"
    """the vision-language model: the bundled one knows only its own scenes. With a network pass
    ViT-B-32/laion2b_s34b_b79k"""
    total_timesteps: int = 20_000
    """steps of the training"""
    seed: int = 0
    """of the environment and the agent"""


def main(args: Args) -> None:
    """Train, and save the agent."""
    env = vlmrm_gym.VLMReward(Pendulum(), prompt=args.prompt, model=args.model)
    agent = SAC("MlpPolicy", env, seed=args.seed, verbose=1)
    agent.learn(args.total_timesteps)
    agent.save("own_env")
    env.close()


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
