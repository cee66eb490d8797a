"""Checks of a reward: what an agent that maximises it would find."""
