"""The entries that this package adds to infos.

`VLMRewardVectorEnv` returns these, as arrays with one element for each environment:

====================  ==========  ======================================================================================
Key                   dtype       Element
====================  ==========  ======================================================================================
`vlm_rewards`         object      float32 (T,), rewards of this environment's oldest unscored transitions, in order;
                                  None where no rewards have arrived.
`vlm_reward_start`    int64       The `vlm_step_index` of the transition that the first of these rewards belongs to.
`vlm_episode_index`   int64       The episode of the first of these rewards, counted per environment from 0.
`vlm_scored`          object      bool (T,), where these rewards were scored: False where they are interpolated or held.
                                  With `score_every` above 1, or an `Endpoint` with `every` only.
`vlm_terms`           object      dict of float32 (T,): the score of each term, without its weight. Of sums only.
`vlm_success`         object      bool (T,), whether a `Success` holds. Of rewards with one only.
`vlm_step_index`      int64       The transition of this step, counted per environment from 0.
`task_reward`         float64     The environment's own reward.
`vlm_features`        object      float32 (T, V, D), features that the rewards were made of. This and the next two with
                                  `return_features=True`.
`vlm_task_rewards`    object      float32 (T,), the part of the rewards that is the environment's own, times its weight.
`vlm_reward_version`  int64       The version of the head that made these rewards; see `CurrentHead`.
====================  ==========  ======================================================================================

As everywhere in Gymnasium, a mask with a leading underscore says where an element is set: `_vlm_rewards` is bool
(num_envs,), and so on. Rewards and their index arrays are set where rewards have arrived. `vlm_step_index` and
`task_reward` are set where the step has led to a state: not where it only resets an environment (next-step autoreset).

`step` returns all of them, with `scoring="step"` the reward of this step, T = 1; `reset` and `flush` all but
`vlm_step_index` and `task_reward`. `vlmrm_gym.read_late` reads what has arrived, of each call and of `VLMVecEnv`.

The infos of one environment (`VLMReward`, or a registered ID through `gym.make`) have `task_reward`, a float, and where
the reward has them `vlm_terms`, a dict of floats, and `vlm_success`, a bool. The environments of this package add
`success`, a bool; `VLMRM/Humanoid-v0`, which defines no success, has False.

`vlmrm_gym.sb3.VLMVecEnv` returns one dictionary for each environment:

====================  ==================================================================================================
Key                   Value
====================  ==================================================================================================
`vlm_step_index`      int, the transition of this step, counted per environment from 0.
`vlm_env_uid`         str, unique to this `VLMVecEnv`: tells its transitions from those of another one.
`vlm_rewards`         float32 (T,), rewards of the oldest unscored transitions; absent if none have arrived.
`vlm_reward_start`    int, the `vlm_step_index` of the first of these rewards; absent if none have arrived.
`vlm_scored`          bool (T,), where these rewards were scored, not interpolated or held; absent if none have arrived.
`vlm_terms`           dict of float32 (T,), see above; absent without a sum.
`vlm_success`         bool (T,), see above; absent without a `Success`.
`vlm_features`        float32 (T, V, D), see above. This and the next three with `return_features=True`, where rewards
                      have arrived.
`vlm_task_rewards`    float32 (T,), see above.
`vlm_reward_version`  int64 (T,), the version of the head that made each of these rewards.
`vlm_fingerprint`     str, which features these are; see `RewardModel`.
`task_reward`         float, the environment's own reward.
`success`             bool, whether the state that the step led to is a success; absent where success is not defined.
`is_success`          bool, at the end of an episode: whether enough of its steps were successes.
`episode`             dict, once all rewards of a finished episode have arrived: `r` (VLM return), `l` (steps), `t`
                      (seconds), `task_return`, and `success` (fraction of the steps) where it is defined.
`scored_episode`      The same dict, for callbacks: a wrapper such as `VecMonitor` overwrites `episode`.
====================  ==================================================================================================

`CaptureState` adds the two below. `VLMRewardVectorEnv` consumes them: its own infos do not have them.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

STATE_KEY = "vlm_state"
"""The state that the step led to: float64 (S,), or its frame, uint8 (H, W, 3). Also set in the metadata of environments
that capture states."""
SCENE_KEY = "vlm_scene"
"""In the metadata of environments that capture their states: the class that is drawn, "module:class"."""
SCENE_UPDATE_KEY = "vlm_scene_update"
"""A `SceneUpdate`, in every step since the scene has changed for the first time."""


def read_success(infos: Mapping[str, Any], num_envs: int) -> NDArray[np.float64]:
    """Read the success of each environment, 0 or 1; NaN where it reports neither. Without a mask all report it."""
    success = np.full(num_envs, np.nan)
    final = infos.get("final_info", {})  # where same-step autoreset has ended an episode
    for reported, reporting in ((infos, True), (final, infos.get("_final_info", True))):
        if "success" in reported:
            mask = np.full(num_envs, reported.get("_success", reporting), dtype=np.bool_)
            success[mask] = np.broadcast_to(np.ravel(reported["success"]), num_envs)[mask]
    return success
