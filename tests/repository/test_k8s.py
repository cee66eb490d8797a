"""The Kubernetes files agree with the image and the package."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FILES = {path.name: path for path in sorted((ROOT / "k8s").glob("*.yaml"))}


def documents(file):
    return list(yaml.safe_load_all(FILES[file].read_text()))


def document(file, kind):
    (found,) = (one for one in documents(file) if one["kind"] == kind)
    return found


def containers(pod):
    return pod.get("initContainers", []) + pod["containers"]


def pods():
    """(file, pod specification) of every pod."""
    cluster, job = document("raycluster.yaml", "RayCluster")["spec"], document("rayjob.yaml", "RayJob")["spec"]
    for file, spec in (("raycluster.yaml", cluster), ("rayjob.yaml", job["rayClusterSpec"])):
        for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
            yield file, group["template"]["spec"]
    yield "job.yaml", document("job.yaml", "Job")["spec"]["template"]["spec"]


def test_the_ray_version_is_that_of_the_image_and_the_job_has_the_same_cluster_but_for_what_its_head_mounts():
    cluster = document("raycluster.yaml", "RayCluster")["spec"]
    (pinned,) = re.findall(r"^ray==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert cluster["rayVersion"] == pinned
    job = document("rayjob.yaml", "RayJob")["spec"]["rayClusterSpec"]
    head = job["headGroupSpec"]["template"]["spec"]
    assert {one["name"] for one in head.pop("volumes")} == {"config", "results"}
    head["containers"][0].pop("volumeMounts")
    assert job == cluster


def test_every_pod_is_restricted_and_uses_the_one_image_and_every_mount_has_its_volume():
    """And weights are where the image keeps them."""
    (cache,) = re.findall(r"^VOLUME (.+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    for file, pod in pods():
        assert pod["securityContext"]["runAsNonRoot"], file
        assert pod["securityContext"]["runAsUser"] == 1000, file
        for container in containers(pod):
            assert container["image"] == "vlmrm-gym:latest", file
            assert container["securityContext"]["allowPrivilegeEscalation"] is False, file
            assert container["securityContext"]["capabilities"]["drop"] == ["ALL"], file
        volumes = {volume["name"] for volume in pod.get("volumes", [])}
        mounts = [mount for container in containers(pod) for mount in container.get("volumeMounts", [])]
        assert {mount["name"] for mount in mounts} == volumes, file
        assert {mount["mountPath"] for mount in mounts if mount["name"] == "cache"} <= {cache}, file


def test_weights_are_fetched_by_a_program_that_names_those_of_the_training():
    """The program itself, with a function that does not download."""
    import open_clip.pretrained

    worker = document("rayjob.yaml", "RayJob")["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["template"]["spec"]
    (fetch,) = (one for one in worker["initContainers"] if one["name"] == "fetch-weights")
    variables = {one["name"]: one["value"] for one in fetch["env"]}
    training = yaml.safe_load(document("rayjob.yaml", "ConfigMap")["data"]["train.yaml"])
    assert training["reward"]["model"] == f"{variables['ARCHITECTURE']}/{variables['TAG']}"
    fetched = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_clip.pretrained, "download_pretrained", fetched.append)
        for name, value in variables.items():
            patch.setenv(name, value)
        exec(fetch["command"][2], {})
    assert fetched == [open_clip.pretrained.get_pretrained_cfg("ViT-L-14", "laion2b_s32b_b82k")]
    assert fetched[0]["hf_hub"] == "laion/CLIP-ViT-L-14-laion2B-s32B-b82K/"


def configured(arguments, monkeypatch, tmp_path):
    """The configuration with which `vlmrm-gym` begins a training."""
    from vlmrm_gym.tools import cli
    from vlmrm_gym.tools.train import run

    started = []
    monkeypatch.setattr(run, "start", lambda config, folder: started.append(config))
    monkeypatch.chdir(ROOT)  # where paths of the documents begin
    cli.main([*arguments, "--base-path", str(tmp_path)])
    return started[0]


def updates(config):
    """Updates of a training, and transitions of the environments for each of them."""
    rl = config.rl
    transitions = rl.train_freq * config.num_envs
    return (rl.n_steps - rl.learning_starts) // transitions * rl.gradient_steps, transitions / rl.gradient_steps


def test_the_training_has_the_papers_hyperparameters_environments_and_updates(monkeypatch, tmp_path):
    (tmp_path / "train.yaml").write_text(document("rayjob.yaml", "ConfigMap")["data"]["train.yaml"])
    ours = configured(["train", str(tmp_path / "train.yaml")], monkeypatch, tmp_path)
    papers = configured(["train", "configs/humanoid_stand.yaml"], monkeypatch, tmp_path)
    assert ours.num_envs == papers.num_envs == 32
    for name in ("algorithm", "learning_rate", "batch_size", "gamma", "tau", "buffer_size", "policy_kwargs", "n_steps"):
        assert ours.rl.values[name] == papers.rl.values[name], name
    assert updates(ours) == updates(papers) == (310_900, 32)


def test_the_command_for_the_cluster_has_the_papers_updates(monkeypatch, tmp_path):
    comment = re.sub(r"\\\n#\s*", "", (ROOT / "k8s" / "raycluster.yaml").read_text())
    (command,) = re.findall(r"^# *vlmrm-gym (train .*)$", comment, re.MULTILINE)
    assert updates(configured(shlex.split(command), monkeypatch, tmp_path)) == (310_900, 32)


def test_the_script_for_slurm_keeps_the_papers_ratio(monkeypatch, tmp_path):
    """The script itself, with commands that do nothing, but for the training's, which prints its arguments."""
    script = (ROOT / "examples" / "train.slurm").read_text()
    commands = ("source", "srun", "ray", "sleep")
    stubs = [*(f"{name}() {{ :; }}" for name in commands), "scontrol() { echo node; }", "python() { echo token; }"]
    stubs.append("vlmrm-gym() { printf '%s\\n' \"$@\"; }")
    variables = {"SLURM_NNODES": "3", "SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "32", "SLURM_JOB_NODELIST": "n"}
    command, env = ["bash", "-c", "\n".join([*stubs, script])], {**os.environ, **variables}
    ran = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
    config = configured(ran.stdout.splitlines(), monkeypatch, tmp_path)
    assert config.num_envs == 192
    assert updates(config) == (310_800, 32)


def test_the_training_goes_on_in_its_own_folder():
    data = document("rayjob.yaml", "ConfigMap")["data"]
    settings = yaml.safe_load(data["train.yaml"])
    folder = f"{settings['base_path']}/{settings['run_name']}"
    assert f"[ -d {folder} ]" in data["train.sh"]
    assert f"--resume {folder}" in data["train.sh"]
    head = document("rayjob.yaml", "RayJob")["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    assert settings["base_path"] in {mount["mountPath"] for mount in head["containers"][0]["volumeMounts"]}
