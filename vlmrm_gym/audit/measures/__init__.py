"""Measures of rewards: NumPy in, NumPy out. They know no environment, no model and no report."""
