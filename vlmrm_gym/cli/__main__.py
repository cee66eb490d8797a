"""`python -m vlmrm_gym.cli` is the command `vlmrm-gym`."""

from vlmrm_gym.cli import main

if __name__ == "__main__":
    main()
