"""Trainings with Stable-Baselines3 told by a file, that leave a folder and can be resumed (extra "train")."""
