"""Frames to rewards. Knows nothing of environments."""

from vlmrm_gym.rewards.clip import CLIPReward as CLIPReward
