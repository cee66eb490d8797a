"""States to rewards: a renderer and a reward model, in this process or in workers. Knows nothing of environments."""

from vlmrm_gym.scoring.backlog import Backlog as Backlog
from vlmrm_gym.scoring.queue import Request as Request
from vlmrm_gym.scoring.start import start_scoring as start_scoring
