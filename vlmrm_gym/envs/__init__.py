"""Environments that pay rewards: one, vectors of them, and those of any registered ID."""
