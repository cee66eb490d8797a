"""Datasets of rollouts with rewards, as Minari has them, and their labels."""
