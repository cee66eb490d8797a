"""Rewards by a server: over a real socket, answered from the pixels that arrive there."""

import logging
import sqlite3
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import DependencyNotInstalled
from poles import draw_poles, measure_angle
from scipy.stats import spearmanr
from vlm_server import KEY, body, busy, completion, nearness, read, status

from vlmrm_gym import Endpoint, VLMReward, VLMRewardVectorEnv
from vlmrm_gym._util.errors import InputError
from vlmrm_gym.rewards import to_mapping
from vlmrm_gym.rewards.endpoint.reward import _open_scores
from vlmrm_gym.states.states import States

ANGLES = np.array([0.5, 80, 22, 41, 33, 60, 12, 28])
STEPS = 10


@pytest.fixture
def make(server):
    """Makes specifications of the server."""
    settings = {"prompt": "The pole is upright.", "model": "m", "base_url": server.url, "retries": 2, "timeout": 5.0}
    return lambda **more: Endpoint(**{**settings, **more})


def frames_of(angles):
    return draw_poles(States(np.array([[0.0, angle] for angle in angles])))


FRAMES = frames_of(ANGLES)
SEEN = np.array([nearness(measure_angle(frame[0])) for frame in FRAMES])


def cart_pole(seed=None):
    return gym.wrappers.TimeLimit(gym.make("CartPole-v1", render_mode="rgb_array").unwrapped, STEPS)


ACTIONS = [1, 1, 1, 0, 0, 0, 1, 1, 1, 0]


def play(reward, **settings):
    """Rewards of an episode of two environments, (2, STEPS), and the infos of its end."""
    with closing(VLMRewardVectorEnv([cart_pole] * 2, reward=reward, **settings)) as envs:
        envs.reset(seed=0)
        steps = [envs.step(np.full(2, action)) for action in ACTIONS]
        infos = steps[-1][-1]
        if settings.get("scoring") == "step":
            return np.transpose([rewards for _, rewards, *_ in steps]), infos
        if infos["vlm_rewards"][0] is None:  # with overlap, or after a failure
            infos = envs.flush()
        return np.stack(infos["vlm_rewards"]), infos


def expected(every):
    """What the server thinks of the states that are asked about, held in between: (2, STEPS)."""
    rewards = []
    for seed in (0, 1):
        env = cart_pole()
        env.reset(seed=seed)
        for t, action in enumerate(ACTIONS):
            env.step(action)
            if t % every == 0:
                newest = nearness(measure_angle(env.render()))
            rewards.append(newest)
        env.close()
    return np.reshape(rewards, (2, STEPS))


@pytest.mark.filterwarnings("ignore:.* gives no log probabilities")
def test_rewards_follow_what_the_server_sees(server, make):
    """With log probabilities exactly, and without them by votes; they are tried once."""
    for server.logprobs, settings, calls, tolerance in [
        ("tokens", {}, 1, 1e-5),
        (None, {"votes": 20}, 20, 0.3),
        ("refused", {"votes": 2}, 2, 1.0),
        ("tokens", {"rating_levels": 5}, 1, 0.15),
    ]:
        server.requests, server.bodies = 0, []
        _open_scores.cache_clear()
        rewards = make(**settings, concurrency=1).build()(FRAMES)  # in order: votes are drawn by their number
        assert rewards.dtype == np.float32
        np.testing.assert_allclose(rewards, SEEN, atol=tolerance)
        if calls != 2:
            assert spearmanr(rewards, -ANGLES).statistic > (0.99 if server.logprobs == "tokens" else 0.85)
        assert server.requests == calls * len(FRAMES) + (server.logprobs == "refused")
        assert sum("logprobs" in one for one in server.bodies) == {"tokens": server.requests}.get(server.logprobs, 1)


@pytest.mark.parametrize(
    "mode", [{"scoring": "step"}, {}, {"overlap": True, "max_pending_bytes": 800}, {"num_workers": 2}], ids=str
)
def test_rewards_are_held_exactly_wherever_they_are_made(server, make, mode):
    """Every third state is asked about, once; the two environments begin with their own."""
    rewards, infos = play(make(every=3), **mode)
    np.testing.assert_allclose(rewards, expected(3), rtol=1e-5)
    assert server.requests == sum(server.asked.values()) == len(server.asked) == 8
    if not mode:
        assert infos["vlm_scored"][0].tolist() == [t % 3 == 0 for t in range(STEPS)]


def test_a_single_environment_holds_over_episodes_of_their_own(make):
    with closing(VLMReward(cart_pole(), reward=make(every=3))) as env:
        for seed, steps in ((1, 4), (0, STEPS)):  # the first episode is left in its middle
            env.reset(seed=seed)
            rewards = [env.step(action)[1] for action in ACTIONS[:steps]]
    np.testing.assert_allclose(rewards, expected(3)[0], rtol=1e-5)


def test_all_states_are_asked_about_by_default(server, make):
    rewards, infos = play(make())
    np.testing.assert_allclose(rewards, expected(1), rtol=1e-5)
    assert "vlm_scored" not in infos
    with pytest.raises(ValueError, match="not for this reward: it says itself that one state in 3 is scored"):
        play(make(every=3), score_every=2)


def test_steps_do_not_wait_for_a_slow_server(server, make):
    server.latency = 0.4
    with closing(VLMRewardVectorEnv([cart_pole], reward=make(every=5, concurrency=1), overlap=True)) as envs:
        envs.reset(seed=0)
        begun = time.monotonic()
        for action in ACTIONS:
            *_, infos = envs.step(np.full(1, action))
        assert infos["vlm_rewards"][0] is None
        assert time.monotonic() - begun < 0.4
        (rewards,) = envs.flush()["vlm_rewards"]
    np.testing.assert_allclose(rewards, expected(5)[0], rtol=1e-5)


def test_nothing_is_asked_twice(server, make, tmp_path):
    """Not in a batch, by another model, nor by another process, which has the file alone."""
    first = make(cache=str(tmp_path / "scores.db"))
    rewards = first.build()(FRAMES[[0, 1, 0, 1]])
    assert server.requests == 2
    assert first.build()(FRAMES[:2]).tolist() == rewards[:2].tolist() == rewards[2:].tolist()
    _open_scores.cache_clear()
    again = make(cache=str(tmp_path / "scores.db"), every=4, concurrency=1).build()(FRAMES[:3])
    assert again[:2].tolist() == rewards[:2].tolist()
    assert server.requests == 3
    for more in ({"prompt": "The pole lies."}, {"model": "n"}, {"rating_levels": 3}, {"request": {"temperature": 0}}):
        before = server.requests
        make(cache=str(tmp_path / "scores.db"), **more).build()(FRAMES[:1])
        assert server.requests == before + 1


def test_what_fails_is_asked_again_by_as_many_at_once_as_are_allowed(server, make):
    for fault in (status(500), busy(0.05), lambda handler: setattr(handler, "close_connection", True)):
        server.faults += [fault, fault]
        server.requests = 0
        np.testing.assert_allclose(make().build()(FRAMES[:1]), SEEN[:1], rtol=1e-5)
        assert server.requests == 3
        _open_scores.cache_clear()
    server.latency, server.most_active = 0.05, 0
    make(concurrency=3).build()(FRAMES)
    assert server.most_active == 3


def test_retry_after_is_honoured_and_what_takes_too_long_is_asked_again(server, make):
    server.faults += [busy(1.1), lambda handler: time.sleep(1.5)]
    np.testing.assert_allclose(make(timeout=0.5).build()(FRAMES[:1]), SEEN[:1], rtol=1e-5)
    assert server.times[1] - server.times[0] >= 1.1


def test_a_pause_before_a_repeated_request_ends_with_close(server, make):
    server.faults.append(busy(60))
    reward = make().build()
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(reward, FRAMES[:1])
        while not server.requests:
            time.sleep(0.01)
        reward.close()
        with pytest.raises(InputError):
            answer.result(timeout=10)


@pytest.mark.parametrize(("budget", "asked"), [(5, 0), (6, 6)])
def test_a_budget_of_calls_ends_with_a_sentence_and_a_higher_one_goes_on(server, make, budget, asked, tmp_path):
    """The first question might need a call and five votes; with log probabilities each needs one call."""
    file = str(tmp_path / "scores.db")
    message = rf"budget of m is used up \(max_calls={budget}, .*: {8 - asked} of 8 states were not asked .* {file}"
    with pytest.raises(InputError, match=message):
        make(max_calls=budget, cache=file).build()(FRAMES)
    assert server.requests == asked
    np.testing.assert_allclose(make(max_calls=100, cache=file).build()(FRAMES), SEEN, rtol=1e-5)
    assert server.requests == len(FRAMES)


def test_a_budget_of_tokens_and_failures_count(server, make):
    """A call takes 110 tokens."""
    with pytest.raises(InputError, match=r"max_total_tokens=330\): 5 of 8 states"):
        make(max_total_tokens=330).build()(FRAMES)
    assert server.requests == 3
    server.faults += [status(500)] * 3
    with pytest.raises(InputError):
        make(max_calls=7, prompt="another", retries=5).build()(FRAMES)
    assert server.requests <= 3 + 7


def test_a_budget_holds_over_environments_and_workers_and_the_states_are_scored_again(server, make):
    """The second model stops: most of the budget was the vector's. What was answered is not asked again."""
    play(make(max_calls=24), num_workers=2)
    assert server.requests == 18
    with pytest.raises(InputError, match="The budget of m is used up"):
        make(max_calls=24).build()(FRAMES)
    assert server.requests == 24
    np.testing.assert_allclose(make(max_calls=50).build()(FRAMES), SEEN, rtol=1e-5)
    assert server.requests == 26


def test_errors_name_the_server_and_what_to_do(server, make, monkeypatch):
    with pytest.raises(InputError, match=r"http://127\.0\.0\.1:9 .* after \d+ s and 2 attempts"):
        play(make(base_url="http://127.0.0.1:9/v1", retries=1, prompt="another"))
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(ValueError, match="OPENAI_API_KEY is not set"):
        play(make())
    play(make(api_key_env=None, every=STEPS))
    monkeypatch.setitem(sys.modules, "httpcore2", None)
    monkeypatch.delitem(sys.modules, "vlmrm_gym.rewards.endpoint.connection")
    with pytest.raises(DependencyNotInstalled, match=r"vlmrm-gym\[endpoint\]"):
        make().build()


def test_the_key_is_sent_and_appears_nowhere(server, make, tmp_path, caplog, capfd):
    """Not in the file, in errors that repeat it, in specifications, logs or the terminal; nor do images."""
    caplog.set_level(logging.DEBUG)
    reward = make(cache=str(tmp_path / "scores.db"), retries=0)
    server.judgements = [f"Your key is {KEY}. {{W}}"]
    reward.build()(FRAMES)
    server.faults += [status(401, f"Incorrect API key provided: {KEY}")]
    with pytest.raises(InputError) as caught:
        reward.build()(frames_of([50]))
    assert server.keys == {f"Bearer {KEY}"}
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    said = "".join([repr(caught.value), repr(caught.value.__cause__), repr(reward), *capfd.readouterr()])
    said += str(to_mapping(reward)) + caplog.text
    assert KEY.encode() not in written
    assert b"data:image" not in written
    assert KEY not in said
    assert "data:image" not in said


@pytest.mark.filterwarnings("ignore:.* gives no log probabilities")
def test_all_views_are_seen_at_once_at_the_size_that_is_asked_for(server, make):
    def complete(body, number):
        (dark, light), _ = read(body["messages"])
        return completion("Yes" if dark.shape == light.shape == (60, 80, 3) and (dark != light).any() else "No")

    server.complete = complete
    reward = make(size=(60, 80), votes=1)
    with closing(gym.make("VLMRM/Humanoid-stand-v0", camera="front-side", reward=reward)) as env:
        env.reset(seed=0)
        assert env.step(env.action_space.sample())[1] == 1.0
    assert server.requests == 1
    with pytest.raises(ValueError, match="`combine_views` is not for a reward that sees all views at once"):
        gym.make("VLMRM/Humanoid-stand-v0", camera="front-side", reward=reward, combine_views="min")


def test_a_reply_that_cannot_be_read_is_asked_for_again_once_and_then_an_error(server, make, tmp_path):
    """The answers before it are kept, and it is asked for by the next call, also where a file says that it was none."""
    prose, file = body(completion("I'm sorry, but I can't tell.")), str(tmp_path / "scores.db")
    model = make(cache=file, concurrency=1).build()
    server.faults += [None, prose]
    np.testing.assert_allclose(model(FRAMES[:2]), SEEN[:2], rtol=1e-5)
    assert server.requests == 3
    server.faults += [None, prose, prose]
    with pytest.raises(InputError, match=r"m must answer with one of no, yes\. Received \"I'm sorry"):
        model(FRAMES[2:])
    assert server.requests == 6
    with sqlite3.connect(file) as scores:  # as earlier versions kept such a reply
        scores.execute("UPDATE scores SET score = NULL WHERE key = (SELECT key FROM scores LIMIT 1)")
    _open_scores.cache_clear()
    np.testing.assert_allclose(make(cache=file).build()(FRAMES), SEEN, rtol=1e-5)
    assert server.requests == 6 + 1 + 5
    server.faults += [prose]
    with pytest.raises(InputError, match="must answer with one of no, yes"):  # the budget has no second one
        make(prompt="another", max_calls=2, votes=1).build()(FRAMES[:1])


@pytest.mark.filterwarnings("ignore:.* gives no log probabilities")
def test_a_vote_that_cannot_be_read_is_asked_for_again(server, make):
    server.complete = lambda body, number: completion(("Yes", "?", "No", "No")[number - 1])
    assert make(votes=3).build()(FRAMES[:1]).tolist() == [pytest.approx(1 / 3)]
    assert server.requests == 4


def test_wrong_settings_and_other_files_are_refused(make, tmp_path):
    for settings, message in [
        ({"rating_levels": 2}, "`rating_levels` must be an integer of at least 3. Received 2."),
        ({"base_url": f"http://{KEY}@host/v1"}, "`base_url` must not have a key"),
        ({"request": {"logprobs": True}}, "`request` must not have 'logprobs'"),
    ]:
        with pytest.raises(ValueError, match=message) as caught:
            make(**settings)
        assert KEY not in str(caught.value)
    (tmp_path / "notes.txt").write_text("not a database, but long enough to be read as the header of one, perhaps")
    with pytest.raises(ValueError, match="is damaged, or none"):
        make(cache=str(tmp_path / "notes.txt")).build()
    with pytest.raises(FileNotFoundError, match="folder of the file of scores"):
        make(cache=str(tmp_path / "no" / "scores.db")).build()
