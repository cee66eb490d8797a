"""The queue alone, over scorers that are told when to die: which batches go where after a death."""

import threading

import numpy as np
import pytest
from backends import check_scored, frames_of, request_for, request_of, start, wait_until
from reward_models import PixelReward

from vlmrm_gym.scoring import ScoringQueue, WorkerDied
from vlmrm_gym.scoring.scorer import StartedScorers
from vlmrm_gym.scoring.state_encoder import StateEncoder
from vlmrm_gym.states import States
from vlmrm_gym.states.drawing import FrameStore


class Mortal:
    """A scorer that dies of a batch with a 7, `deaths` times at most, and waits for the test before it answers any."""

    max_in_flight = 3

    def __init__(self, deaths=100):
        self.deaths, self.died, self.alone = deaths, 0, []
        self.go, self.stopped = threading.Event(), False
        self.unanswered = []

    def wait_until_available(self):
        return not self.stopped

    def send(self, batch):
        self.unanswered.append(batch.states.rows[:, 0, 0, 0].tolist())

    def receive(self):
        self.go.wait()
        if self.died < self.deaths and any(7 in numbers for numbers in self.unanswered):
            self.died += 1
            self.alone.append(len(self.unanswered) == 1)
            self.unanswered.clear()
            raise WorkerDied(f"death number {self.died}")
        return np.array(self.unanswered.pop(0), dtype=np.float32)[:, None, None]

    def abort(self):
        self.stopped = True
        self.go.set()

    def close(self):
        pass


@pytest.fixture
def make():
    made = []

    def make(*scorers, max_pending_bytes=2**20):
        info = StateEncoder(PixelReward(batch_size=2), 1).info
        started = StartedScorers(scorers, info, FrameStore())
        made.append(ScoringQueue(started, info.make_head(None), max_pending_bytes=max_pending_bytes))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_three_deaths_over_the_same_batch_are_an_error_and_cost_no_other_batch(make):
    """After the first death each batch that the worker had goes alone, and the others wait."""
    scorer = Mortal()
    scoring = make(scorer)
    harmless, deadly, later = request_of([1, 2]), request_of([7, 3]), request_of([4, 5])
    scoring.submit(harmless, deadly, later)
    scorer.go.set()
    error = deadly.error()
    assert isinstance(error, WorkerDied)
    assert str(error) == "death number 3"
    check_scored(harmless, [1, 2])
    check_scored(later, [4, 5])
    assert scorer.died == 3
    assert scorer.alone[1:] == [True, True]
    assert scoring.pending_bytes == 0


def test_batches_of_a_worker_that_died_are_scored_by_another(make):
    dying, other = Mortal(deaths=1), Mortal(deaths=0)
    scoring = make(dying, other)
    requests = [request_of([number, number + 1]) for number in (1, 7, 3, 5)]
    scoring.submit(*requests)
    for scorer in (dying, other):
        scorer.go.set()
    for request, number in zip(requests, (1, 7, 3, 5), strict=True):
        check_scored(request, [number, number + 1])


def test_states_of_differing_shapes_are_scored_apart(make):
    scorer = Mortal(deaths=0)
    scorer.go.set()
    scoring = make(scorer)
    requests = [request_for(States(np.full((1, size, size, 3), size, dtype=np.uint8))) for size in (1, 2, 3)]
    scoring.submit(*requests)
    assert wait_until(lambda: all(request.done() for request in requests), 5)
    assert [request.features.item() for request in requests] == [1, 2, 3]


def test_submit_waits_while_memory_is_full(make):
    scorer = Mortal(deaths=0)
    scoring = make(scorer, max_pending_bytes=12)  # four frames
    first, second, huge = request_of([1, 2, 3]), request_of([4, 5]), request_of(range(10, 30))
    scoring.submit(first)
    waiting = threading.Thread(target=scoring.submit, args=(second,))
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    assert scoring.pending_bytes == 9
    scorer.go.set()
    waiting.join(5)
    check_scored(second, [4, 5])
    scoring.submit(huge)  # more than the limit by itself
    check_scored(huge, range(10, 30))


class Widening(PixelReward):
    """Features of another width for each number of frames."""

    def encode(self, frames):
        return np.zeros((len(frames), len(frames)))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_features_of_several_widths_are_refused(num_workers):
    """Also in other batches of one request, and the queue goes on."""
    queue = start(Widening, num_workers, batch_size=4)
    assert queue.features(frames_of(range(4))).shape == (4, 1, 4)
    for count in (3, 10):
        with pytest.raises(ValueError, match=r"`encode` must return features of one width\. Received \d, after 4"):
            queue.features(frames_of(range(count)))
    assert queue.features(frames_of(range(4))).shape == (4, 1, 4)
    queue.close()
