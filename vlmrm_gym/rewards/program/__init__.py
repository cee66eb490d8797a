"""Programs as rewards: the specification, and what executes them, isolated from everything else."""
