"""A setting that cannot be used is refused with its key and line, in its constructor's words, before any folder."""

import re
import time

import pytest

from vlmrm_gym.cli import main
from vlmrm_gym.cli.train import read_settings
from vlmrm_gym.training import run
from vlmrm_gym.training.config_file import ConfigError, read_config_file

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore:The bundled model does not know"),
]

CART, CAR, STAND = "VLMRM/CartPole-v1", "VLMRM/MountainCarContinuous-v0", "VLMRM/Humanoid-stand-v0"
NOISE = "action_noise: {name: "
PIXEL = "name: 'own_things:mean_pixel'"
SHORT, ENDLESS, BLIND = (f"own_things:Own/{name}-v0" for name in ("Short", "Endless", "Blind"))

RL = [
    (CART, "algorithm: SAC", "`rl`: The algorithm only supports .*Box.* but Discrete"),
    (CART, "gradient_steps: 0", "`rl.gradient_steps` must be at least 1 for DQN. Received 0"),
    (CART, "algorithm: PPO, gradient_steps: -1", "`rl.gradient_steps` must be at least 1 for PPO"),
    (CART, "start_near_goal: 0.5", "`rl.start_near_goal` is not for CartPole"),
    (CART, "policy_kwargs: {net_arc: [3]}", "`rl.policy_kwargs.net_arc`: .* argument 'net_arc'"),
    (CART, "policy_kwargs: {activation_fn: ReLU}", "`rl`: 'str' object is not call"),
    (CART, "learning_rate: -1", "`rl`: Invalid learning rate: -1"),
    (CART, "device: gpu", "`rl`: Expected one of cpu, cuda"),
    (CAR, "ent_coef: fast", "`rl`: could not convert string to float: 'fast'"),
    (CAR, NOISE + "PinkNoise}", "`rl.action_noise` must have a name: NormalActionNoise"),
    (CAR, NOISE + "ActionRepeatNoise, hold: 0}", "`rl.action_noise.hold` must be an integer"),
    (CAR, NOISE + "NormalActionNoise, sigma: -1}", "`rl.action_noise` must draw finite"),
]
REWARD = [
    (CART, "model: ViT-B-33/openai", '`reward.model` must be "tiny"'),
    (CART, "device: gpu", '`reward.device` must be "auto" or a device'),
    (CART, "textured: no", "`reward.textured` is not for CartPole"),
    (CART, "worker_timeouts: {laod: 3}", "`reward.worker_timeouts` must be a mapping of 'load', 'draw', 'encode'"),
    (CART, "ray_options: {num_gpus: 1}", '`reward.ray_options` needs backend="ray"'),
    ("Ant-v5", "prompt: a, alpha: 0.5", "`reward.alpha` above 0 needs a `baseline`"),
    (CART, "name: 'no_such_module:f'", "`reward.name` must name a module that can be imported here"),
    (CART, "name: 'own_things:mean_pixl'", "`reward.name` must exist. .*Did you mean 'mean_pixel'"),
    (CART, "name: clop", "`reward.name`: kind must be one of 'clip', .*Received 'clop'. Did you mean 'clip'"),
    (CART, PIXEL + ", kwargs: {scael: 2}", "`reward.kwargs` must fit 'own_things:mean_pixel', which takes .*'scael'"),
    (CART, PIXEL + ", alpha: 0.5", "`reward.name` and `alpha` cannot both be passed"),
    (CART, "kwargs: {a: 1}", "`reward.kwargs` needs a `reward` to pass them to"),
    ("Pendulum-v1", "prompt: a, camera: [0, 1]", "`reward.camera` is for MuJoCo environments. Received .0, 1"),
    (STAND, "camera: []", "`reward.camera` must"),
    (STAND, "camera: [track, sidewards]", "`reward.camera`: this model has no camera 'sidewards'"),
    (STAND, "camera_config: [track, {distnce: 2}]", "`reward.camera_config` has no field 'distnce'"),
    (STAND, "camera: around, combine_views: max", "`reward.combine_views` must be one of 'min', 'mean', a"),
    (STAND, "camera: around, combine_views: 'own_things:relative'", "`reward.combine_views` must map the rewards of"),
]
ENVIRONMENT = [
    (CART, "env_kwargs: {a: 1}", "line 3: `env_kwargs` is for IDs of other packages"),
    ("VLMRM/Ant-v5", "", "line 1: `env_name` must be a registered ID, .*Wrap Ant-v5, (?!.*Did you mean)"),
    ("Ant-v6", "", "line 1: `env_name` must be a registered ID, or .* Received 'Ant-v6': Env.*Did you mean 'Ant-v"),
    ("Ant-v5", "env_kwargs: {zzz: 1}", "line 1: `env_name` .*, that takes `env_kwargs`. Received .*zzz"),
    ("Ant-v5", "env_kwargs: {render_mode: human}", "line 1: `env_name` .*`env_kwargs` cannot have 'render_mode'"),
    (ENDLESS, "", "`rl.episode_length` must be given: .* has no time limit"),
    (BLIND, "", 'line 1: `env_name` .*must have the render mode "rgb_array"'),
    ("VLMRM/Humanoid-v0", "rl: {start_near_goal: 1}", "line 3: `rl.start_near_goal` needs a task"),
    (SHORT, "env_kwargs: {actions: true}", "`rl`: The algorithm only supports .* MultiBinary"),
]
ROWS = [(f"env_name: {id}\nrl: {{{rl}}}", f"line 2: {problem}") for id, rl, problem in RL]
ROWS += [(f"env_name: {id}\nreward: {{{reward}}}", f"line 2: {problem}") for id, reward, problem in REWARD]
ROWS += [(f"env_name: {id}\nreward: {{prompt: a, model: tiny}}\n{more}", problem) for id, more, problem in ENVIRONMENT]


@pytest.mark.parametrize(("text", "problem"), ROWS)
def test_a_setting_that_cannot_be_used_is_refused(text, problem, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(run, "_learn", lambda *_: None)
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(SystemExit) as raised:
        main(["train", str(file), "--trust-code", "--base-path", str(tmp_path / "runs")])
    output = capsys.readouterr().err
    assert raised.value.code == 2, output
    assert re.search(rf"\n  {problem}", output), output
    assert not (tmp_path / "runs").exists()


def write(text, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def bomb(levels):
    """Lists of nine times the list before: 9 ** levels values when aliases are expanded."""
    lists = [f"x{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, levels)]
    return "\n".join(["x0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]", *lists]) + "\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (bomb(9) + "tags: *a8", "there may be at most 10,000 values, counted again for each alias of them"),
        ("rl:\n  policy_kwargs: " + "[" * 5_000, "there may be at most 32 levels of lists and mappings"),
        ("x: " + "{a: " * 40 + "1" + "}" * 40, "line 1: .* there may be at most 32 levels of lists and mappings"),
        ("rl: &a\n  policy_kwargs: *a", "there may be at most 32 levels"),  # refers to itself
        ("a: b\n" * 20_001, r"must have at most 100,000 bytes\. Received 100,005"),
        ("seed: !!int ''", "this is not valid YAML"),
        ("- 3", r"a configuration is a mapping of keys to values. Received \[3\]"),
        ("description: 2020-13-45", "month must be in 1..12"),
        (bytes(range(256)), "cannot be read: 'utf-8' codec"),
        ("rl:\n\tn_steps: 3", "line 2: this is not valid YAML"),
        ("env_name: CartPole-v1\n---\nseed: 3\n", "line 2: this is not valid YAML: but found another document"),
        ("description: !!python/object/apply:os.getcwd []", "line 1: this is not valid YAML"),
    ],
)
def test_what_is_no_configuration_or_too_large_is_refused_at_once(text, problem, tmp_path):
    began = time.process_time()
    with pytest.raises(ConfigError, match=problem) as raised:
        read_config_file(write(text, tmp_path))
    assert len(str(raised.value)) < 400
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    "text",
    [
        f"tags: [&a {'a' * 9_000}" + ", [*a]" * 4_000 + "]",
        "seed: " + "9" * 9_000,
        "0x" + "f" * 9_000 + ": 1",
        f"rl: {{policy_kwargs: {{{'a' * 9_000}: {'a' * 9_000}}}, n_steps: {'a' * 9_000}, {'b' * 9_000}: 1}}",
        f"reward: {{name: {'a' * 9_000}}}",
        "\n".join(f"a{i}: 1" for i in range(4_000)),
        f"env_name: {'a' * 9_000}",
    ],
    ids=range(7),
)
def test_messages_are_short_whatever_was_received(text, tmp_path):
    if not text.startswith("env_name"):
        text = "env_name: CartPole-v1\n" + text
    with pytest.raises(ConfigError) as raised:
        read_settings(write(text, tmp_path), [], trust_code=True)
    assert max(map(len, str(raised.value).splitlines())) < 1_400
    assert len(str(raised.value).splitlines()) <= 52
