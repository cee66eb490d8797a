"""Programs as rewards: what executes them, isolated from everything else. The specification is `vlmrm_gym.Program`."""
