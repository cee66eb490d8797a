"""A vector environment of one's own, which declares, returns and reuses what it is told to."""

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED


class CountingVector(VectorEnv):
    """Frames and observations count the steps of the episode: the reward of `PixelReward` is the count.

    Args:
        num_envs: Number of environments; their episodes end together.
        length: Of the episodes, which terminate.
        resets: When it resets, whatever it declares.
        declares: What its metadata say; None: nothing.
        says: The infos that it adds where it resets in the step of the end.
        convert: Applied to rewards, terminations and truncations.
    """

    render_mode = "rgb_array"

    def __init__(
        self,
        num_envs=1,
        length=5,
        *,
        resets=NEXT_STEP,
        declares=None,
        says=("final_obs", "final_info"),
        convert=lambda values: values,
    ):
        self.metadata = {"render_modes": ["rgb_array"]}
        if declares is not None:
            self.metadata["autoreset_mode"] = declares
        self.num_envs, self.length, self.resets, self.says, self.convert = num_envs, length, resets, says, convert
        self.single_observation_space = gym.spaces.Box(0, 255, (1,), np.float32)
        self.single_action_space = gym.spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observations = np.zeros((num_envs, 1), dtype=np.float32)  # reused, as in shared memory
        self.rewards = np.zeros(num_envs)
        self.count, self.ended = 0, False

    def reset(self, *, seed=None, options=None):
        self.count, self.ended = 0, False
        self.observations[:] = 0
        return self.observations, {}

    def step(self, actions):
        infos = {}
        if self.ended and self.resets == NEXT_STEP:
            self.reset()
            self.rewards[:] = 0
        else:
            self.count += 1
            self.rewards[:] = 0.5 * self.count
            self.ended = self.count == self.length
            self.observations[:] = self.count
        ended = self.ended
        if ended and self.resets == SAME_STEP:
            infos = self.final()
            self.reset()
        ends, never = np.full(self.num_envs, ended), np.full(self.num_envs, False)
        return self.observations, *map(self.convert, (self.rewards, ends, never)), infos

    def final(self):
        final_obs = np.empty(self.num_envs, dtype=object)
        final_obs[:] = [row.copy() for row in self.observations]
        infos = {"final_obs": final_obs, "final_info": {"count": np.full(self.num_envs, self.count)}}
        infos["final_observation"] = final_obs
        infos = {name: infos[name] for name in self.says}
        return infos | {f"_{name}": np.full(self.num_envs, True) for name in infos}

    def render(self):
        frame = np.zeros((2, 2, 3), dtype=np.uint8)
        frame[0, 0, 0] = self.count
        return (frame,) * self.num_envs
