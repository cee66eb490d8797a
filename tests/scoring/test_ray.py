"""Ray as a scorer backend: what is particular to it. What all backends have in common is in test_scorer_backends.py."""

import gc
import os
import re
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from backends import actors, check_scored, request_of, start, vector, wait_until
from counting_env import Counting
from gymnasium.error import DependencyNotInstalled
from reward_models import SlowReward

import vlmrm_gym
from vlmrm_gym.scoring.ray_cluster import compare_versions, versions

pytest.importorskip("ray")
HELPERS = Path(__file__).parents[1] / "helpers"


@pytest.fixture(autouse=True)
def no_actor_is_left():
    yield
    gc.collect()
    assert wait_until(lambda: not actors(), 30)


ray_vector = partial(vector, backend="ray", num_workers=1)


def run_script(text, *arguments, env=None, timeout=120):
    """Run Python in a process of its own, with the tests' modules at hand."""
    return subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(HELPERS)!r})\n{text}", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **(env or {})},
    )


@pytest.mark.slow
def test_two_vectors_share_the_cluster_of_the_user_and_options_reach_ray(ray_cluster):
    options = {"num_cpus": 3, "runtime_env": {"env_vars": {"VLMRM_GYM_TEST": "1"}}}
    first, second = ray_vector([Counting([4])], ray_options=options), ray_vector([Counting([4], first=100)])
    for envs in (first, second):
        envs.reset(seed=0)
    assert [b"VLMRM_GYM_TEST=1" in Path(f"/proc/{pid}/environ").read_bytes() for pid in actors()].count(True) == 1
    assert wait_until(lambda: ray_cluster.available_resources()["CPU"] == 4)
    first.close()
    for _ in range(4):
        infos = second.step(np.zeros(1, dtype=int))[4]
    np.testing.assert_array_equal(infos["vlm_rewards"][0], [102, 103, 104, 105])
    second.close()
    assert ray_cluster.is_initialized()


@pytest.mark.slow
def test_workers_start_when_there_is_room(ray_cluster, caplog):
    """Six of eight CPUs are taken: one actor starts, the other one when the first vector is closed."""
    first = ray_vector([Counting()], num_workers=3, ray_options={"num_cpus": 2})
    queue = start(SlowReward, 2, backend="ray", batch_size=4, ray_options={"num_cpus": 2})
    assert re.search("runs [01] of 2 scoring actors", caplog.text)
    request = request_of(range(40))
    queue.submit(request)
    check_scored(request, range(40))
    first.close()
    assert wait_until(lambda: len(actors()) == 2)
    again = request_of(range(40))
    queue.submit(again)
    check_scored(again, range(40))
    queue.close()


@pytest.mark.slow
def test_a_cluster_without_room_is_an_error_after_a_while(ray_cluster):
    first = ray_vector([Counting()], ray_options={"num_cpus": 8})
    with pytest.raises(RuntimeError, match=r"for 1 seconds\. Nodes alive: .* \(8 CPUs, 0 GPUs\)\. Free"):
        ray_vector([Counting()], worker_timeouts={"schedule": 1})
    first.close()


REFUSED = [
    ({"ray_options": {"resources": {"tpu-v9": 1}}}, r"No node of the Ray cluster has .*'tpu-v9': 1"),
    ({"device": "cuda"}, r"No node of the Ray cluster has .*'GPU': 1"),
    ({"ray_options": {"max_restarts": 3}}, r"`ray_options` must leave max_restarts.*'max_restarts'"),
    ({"ray_options": {"num_gpu": 1}}, r"`ray_options` must be options of a Ray actor.*num_gpu"),
    ({"devices": ["cpu"]}, r'`devices` is for backend="process".*num_gpus'),
    ({"device": "cuda:1"}, r'`device` must be "auto", "cpu" or "cuda" with backend="ray"'),
    ({"device": "cpu", "ray_options": {"num_gpus": 1}}, "must agree"),
]


@pytest.mark.slow
def test_options_that_cannot_be_are_refused_at_once(ray_cluster):
    begun = time.monotonic()
    for options, message in REFUSED:
        with pytest.raises(ValueError, match=message):
            ray_vector([Counting()], **options)
    assert time.monotonic() - begun < 60  # not the 600 s of `schedule`


@pytest.mark.slow
def test_a_reward_that_nodes_cannot_import(ray_cluster, tmp_path, monkeypatch):
    """It is imported in this process only, as one that is not installed on the nodes."""
    text = "import os\nif os.getpid() != %d: import no_such_library\ndef f(frames): return frames.mean((1, 2, 3))\n"
    (tmp_path / "here_only.py").write_text(text % os.getpid())
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RuntimeError, match=r"`reward` cannot be imported on node .*no_such_library.*working_dir"):
        vlmrm_gym.VLMRewardVectorEnv([Counting], reward="here_only:f", num_workers=1, backend="ray")


def test_versions_must_agree():
    here = versions()
    assert compare_versions(here, here) == []
    (warning,) = compare_versions(here, {**here, "torch": "1.0"})
    assert "has torch 1.0" in warning
    with pytest.raises(RuntimeError, match=r"has vlmrm_gym 0\.0\.1, the driver .* Use one image for all"):
        compare_versions(here, {**here, "vlmrm_gym": "0.0.1"})


def test_ray_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(DependencyNotInstalled, match=r'pip install "vlmrm-gym\[ray\]"'):
        ray_vector([Counting()])


def test_a_cluster_that_cannot_be_reached_is_named():
    done = run_script(
        "import time, vlmrm_gym\n"
        "from counting_env import Counting\n"
        "begun = time.monotonic()\n"
        "try:\n"
        "    vlmrm_gym.VLMRewardVectorEnv([Counting], 'count', num_workers=1, backend='ray')\n"
        "except ConnectionError as error:\n"
        "    print(time.monotonic() - begun < 20, error)\n",
        env={"RAY_ADDRESS": "127.0.0.1:9"},
    )
    assert "True The Ray cluster at RAY_ADDRESS='127.0.0.1:9' cannot be reached" in done.stdout, done.stderr


SHARED = """
import numpy as np, ray
from backends import vector
from counting_env import Counting

def make(first):
    return vector([Counting([3], first=first)], "ray", num_workers=1)

def episode(envs):
    envs.reset(seed=0)
    for _ in range(3):
        infos = envs.step(np.zeros(1, dtype=int))[4]
    return infos["vlm_rewards"][0].tolist()

one, two = make(0), make(100)
print(episode(one))
one.close()
print(ray.is_initialized(), episode(two))
two.close()
print(ray.is_initialized())
again = make(200)
print(episode(again))
del again
print(ray.is_initialized())
"""


@pytest.mark.slow
def test_a_local_cluster_ends_with_the_last_vector():
    done = run_script(SHARED)
    lines = ["[2.0, 3.0, 4.0]", "True [102.0, 103.0, 104.0]", "False", "[202.0, 203.0, 204.0]", "False"]
    assert (done.returncode, done.stdout.splitlines()) == (0, lines), done.stderr
    assert done.stderr == ""


NODES = """
import threading, time
import numpy as np, ray
from backends import vector
from counting_env import Counting
from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
node = cluster.add_node(num_cpus=2)
ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
base = Counting([30])
envs = vector([base], "ray", "SlowReward", reward_kwargs={"batch_size": 4}, overlap=True)
received = []

def steps():
    envs.reset(seed=0)
    for _ in range(300):
        infos = envs.step(np.zeros(1, dtype=int))[4]
        received.extend([] if infos["vlm_rewards"][0] is None else infos["vlm_rewards"][0])
    received.extend(envs.flush()["vlm_rewards"][0])

thread = threading.Thread(target=steps)
thread.start()
time.sleep(1)
cluster.remove_node(node)
time.sleep(30)
print(thread.is_alive())
cluster.add_node(num_cpus=2)
thread.join(100)
print(received == base.expected_rewards, len(received))
envs.close()
"""


@pytest.mark.slow
def test_a_cluster_that_shrinks_to_nothing_and_comes_back_is_waited_for():
    done = run_script(NODES, timeout=200)
    assert done.stdout.splitlines()[-2:] == ["True", "True 300"], done.stdout + done.stderr
    assert "no room for a scoring actor. Waiting for a node." in done.stderr


LOST = (
    NODES.replace("overlap=True", 'overlap=True, worker_timeouts={"schedule": 15}').partition("received = []")[0]
    + """
envs.reset(seed=0)
for step in range(1000):
    if step == 40:
        cluster.remove_node(node)
        lost = time.monotonic()
    try:
        envs.step(np.zeros(1, dtype=int))
    except RuntimeError as error:
        print(time.monotonic() - lost < 60, error)
        break
envs.close()
"""
)


@pytest.mark.slow
def test_the_limit_for_a_place_ends_a_wait_in_the_middle_of_a_run():
    """Others run this cluster: its head lives, without CPUs, and the only node that has some is lost."""
    done = run_script(LOST, timeout=200)
    expected = (
        r"True The Ray cluster had no room .* for 15 seconds\. Nodes alive: \S+ \(0 CPUs, 0 GPUs\)\. Free resources"
    )
    assert re.search(expected, done.stdout), done.stdout + done.stderr


DEAD = """
import os, signal, time
from pathlib import Path
import numpy as np
from backends import children, vector
from counting_env import Counting

def find(name, parent):
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_text() for pid in children(parent)}
    (found,) = [pid for pid, command in commands.items() if name in command.split(chr(0) + "-")[0]]
    return found

envs = vector([Counting([30])], "ray", "SlowReward", 1, reward_kwargs={"batch_size": 4}, overlap=True)
envs.reset(seed=0)
for _ in range(40):
    envs.step(np.zeros(1, dtype=int))
victim = sys.argv[1]
parent = find("raylet/raylet", os.getpid()) if victim == "RuntimeEnvAgent" else os.getpid()
os.kill(find(victim, parent), signal.SIGKILL)
killed = time.monotonic()
try:
    while True:
        envs.step(np.zeros(1, dtype=int))
except RuntimeError as error:
    print(time.monotonic() - killed < 30, error)
envs.close()
print(time.monotonic() - killed < 45)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "why"),
    [
        ("RuntimeEnvAgent", "its only node is gone"),
        ("raylet/raylet", "its only node is gone"),
        ("gcs_server", r"its head does not answer \(.*\)"),
    ],
)
def test_a_cluster_of_ours_that_has_died_is_an_error(victim, why):
    done = run_script(DEAD, victim)
    expected = rf"True The Ray cluster that vlmrm_gym started .* has died: {why}\. Make environments again\.\nTrue\n"
    assert re.search(expected, done.stdout), done.stdout + done.stderr
