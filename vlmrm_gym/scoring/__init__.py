"""Turns states into features with a renderer and a reward model, in this process or in workers."""

from vlmrm_gym.scoring.backends import make_scoring_queue as make_scoring_queue
from vlmrm_gym.scoring.queue import ScoringQueue as ScoringQueue
from vlmrm_gym.scoring.requests import Request as Request
from vlmrm_gym.scoring.requests import transition_keys as transition_keys
from vlmrm_gym.scoring.scorer import WorkerDied as WorkerDied
