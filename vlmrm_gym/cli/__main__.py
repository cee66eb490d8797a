"""`python -m vlmrm_gym.cli` is the command `vlmrm-gym`."""

from vlmrm_gym.cli import main

main()
