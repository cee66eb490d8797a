"""The tools on top of the environments: checks, trainings, programs, datasets, and the commands that run them."""
