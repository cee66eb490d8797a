"""The training command: Stable-Baselines3 runs from a configuration, resumable, in a folder each (extra "train")."""
