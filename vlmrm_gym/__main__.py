"""`python -m vlmrm_gym` is the command `vlmrm-gym`."""

from vlmrm_gym.tools.cli import main

if __name__ == "__main__":
    main()
