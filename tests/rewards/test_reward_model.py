"""The reward model protocol: only `__call__` is needed, everything else has a default."""

import numpy as np
import pytest

from vlmrm_gym.rewards import RewardModel
from vlmrm_gym.rewards.base import CheckedReward
from vlmrm_gym.rewards.custom import OwnReward


class Redness(RewardModel):
    """Defines nothing but `__call__`."""

    def __call__(self, frames):
        return frames[..., 0].mean(axis=(1, 2), dtype=np.float32)


class LargeFrames(Redness):
    """Overrides the defaults, as attributes."""

    batch_size = 8
    microbatch_size = 3
    render_size = staticmethod(lambda height, width: (2 * height, 2 * width))


def plain_function(frames):
    return frames[..., 0].mean(axis=(1, 2))


@pytest.mark.parametrize("model", [Redness(), CheckedReward(Redness()), CheckedReward(plain_function)])
def test_defaults(model):
    assert (model.batch_size, model.microbatch_size) == (64, 64)
    assert model.render_size(400, 600) == (400, 600)


def test_keyword_arguments_do_not_hide_the_attributes_of_a_callable():
    class ManyViews(LargeFrames):
        multi_view = True

        def __call__(self, frames, scale=1.0):
            return scale * frames[:, 0, ..., 0].mean(axis=(1, 2))

    frames = np.full((5, 2, 4, 4, 3), 10, dtype=np.uint8)
    model = OwnReward(ManyViews(), {"scale": 2.0}).build()
    assert (model.batch_size, model.microbatch_size, model.multi_view) == (8, 3, True)
    assert model.render_size(400, 600) == (800, 1200)
    assert model(frames).tolist() == [20.0] * 5


def test_a_model_without_call_cannot_be_instantiated():
    class Nothing(RewardModel):
        pass

    with pytest.raises(TypeError, match="__call__"):
        Nothing()  # pyright: ignore[reportAbstractUsage]
