"""tmp"""

from vlmrm_gym.check.results import Verdict


def judge(measures, cheats):
    return Verdict(name="unknown", reasons=[], next_steps=[])


def best_first(rows):
    return rows


def list_gains(rows):
    return []
