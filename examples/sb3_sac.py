"""Stable-Baselines3's SAC, unmodified, with rewards from a prompt.

python examples/sb3_sac.py
"""

from dataclasses import dataclass

import tyro
from stable_baselines3 import SAC

from vlmrm_gym.sb3 import DeferredReplayBuffer, ScoredReturnCallback, make_vec_env


@dataclass
class Args:
    env_id: str = "VLMRM/Humanoid-stand-v0"
    """a registered ID"""
    num_envs: int = 8
    """number of environments"""
    num_workers: int = 0
    """worker processes that render and score; 0: the main process"""
    total_timesteps: int = 100_000
    """steps, summed over all environments"""
    seed: int = 1
    """seed of environments and agent"""


def main(args: Args) -> None:
    envs = make_vec_env(args.env_id, args.num_envs, seed=args.seed, num_workers=args.num_workers, overlap=True)
    model = SAC(
        "MlpPolicy",
        envs,
        replay_buffer_class=DeferredReplayBuffer,
        learning_starts=400 * args.num_envs,  # at least two episodes, so that some are scored
        gamma=0.95,
        seed=args.seed,
        tensorboard_log="runs",
        verbose=1,
    )
    model.learn(args.total_timesteps, callback=ScoredReturnCallback(), progress_bar=True)
    model.save(f"{model.logger.dir}/model")  # beside its events
    envs.close()


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
