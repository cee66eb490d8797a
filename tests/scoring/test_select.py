"""Which states are scored, and what is interpolated between them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from vlmrm_gym.scoring.select import SparseScoring, interpolate

CURVES = arrays(np.float32, st.integers(1, 60), elements=st.floats(-100, 100, width=32))


@given(curve=CURVES, every=st.integers(1, 60), size=st.integers(0, 2))
def test_values_are_exact_where_they_are_known_and_linear_between(curve, every, size):
    """Rewards (T,) and features (T, 1, D); the first, every k-th and the last are known."""
    chosen = SparseScoring(every).choose(len(curve))
    assert chosen.tolist() == sorted({*range(0, len(curve), every), len(curve) - 1})
    columns = curve if size == 0 else np.stack([curve, -curve][:size], axis=-1)[:, None]
    values = interpolate(chosen, columns[chosen])
    assert values.dtype == np.float32
    assert values[chosen].tobytes() == columns[chosen].tobytes()
    expected = np.interp(np.arange(len(curve)), chosen, curve[chosen])
    np.testing.assert_allclose(values if size == 0 else values[:, 0, 0], expected, atol=1e-4)


def test_differences_of_large_values_do_not_overflow():
    high = np.array([-3e38, 3e38], dtype=np.float32)
    assert interpolate(np.array([0, 2]), high).tolist() == [high[0], 0, high[1]]
