"""What a Stable-Baselines3 user writes: unmodified SAC, on rewards that a sentence gives.

python examples/sb3_sac.py
"""

from dataclasses import dataclass

import tyro
from stable_baselines3 import SAC

from vlmrm_gym.sb3 import DeferredReplayBuffer, LogReturns, make_vec_env


@dataclass
class Args:
    env_id: str = "VLMRM/Humanoid-stand-v0"
    """a registered ID"""
    num_envs: int = 8
    """environments that are stepped together"""
    num_workers: int = 0
    """processes that draw and score; 0: this one"""
    total_timesteps: int = 100_000
    """steps of all environments together"""
    seed: int = 1
    """of environments and agent"""


def main(args: Args) -> None:
    envs = make_vec_env(args.env_id, args.num_envs, seed=args.seed, num_workers=args.num_workers, overlap=True)
    model = SAC(
        "MlpPolicy",
        envs,
        replay_buffer_class=DeferredReplayBuffer,
        learning_starts=400 * args.num_envs,  # two episodes at the longest: an agent learns from scored ones
        gamma=0.95,
        seed=args.seed,
        tensorboard_log="runs",
        verbose=1,
    )
    model.learn(args.total_timesteps, callback=LogReturns(), progress_bar=True)
    model.save(f"{model.logger.dir}/model")  # beside its events
    envs.close()


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
