"""A setting that cannot be used is refused with its key and line, in its constructor's words, before any folder."""

import re
import time

import pytest
from commands import refused, write

from vlmrm_gym._util.errors import InputError
from vlmrm_gym.tools.train import run
from vlmrm_gym.tools.train.checks import read_settings
from vlmrm_gym.tools.train.config_file import ConfigError, read_config_file

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
    (CART, "gama: 0.9", "`rl.gama` is not a parameter of DQN. Did you mean `rl.gamma`?"),
    (CART, "ent_coef: 0.1", "`rl.ent_coef` is not a parameter of DQN. It has learning_rate, buffer_size, learning_st"),
    (CART, "algorithm: PPO, n_epochs: 3", "`rl.n_epochs` is not a parameter of PPO. Did you mean `rl.gradient_steps`"),
    (CART, "algorithm: PPO, ent_coef: auto", "`rl.ent_coef` must be a valid number"),
    (CART, "buffer_size: 1e300", r"`rl.buffer_size` must be from 1 to 10\^9. Received 1e\+300."),
    (CART, "gamma: .nan", "`rl.gamma` must be a finite number"),
    (CART, "tensorboard_log: x", "`rl.tensorboard_log` is not a parameter of DQN."),
    (CART, "_init_setup_model: x", "`rl._init_setup_model` is not a parameter of DQN."),
    (CART, "algorithm: SAC", "`rl`: The algorithm only supports .*Box.* but Discrete"),
    (CART, "gradient_steps: 0", "`rl.gradient_steps` must be at least 1 for DQN. Received 0"),
    (CART, "start_near_goal: 0.5", "`rl.start_near_goal` is not for CartPole"),
    (CART, "policy_kwargs: {net_arc: [3]}", "`rl.policy_kwargs.net_arc`: .* argument 'net_arc'"),
    (CART, "learning_rate: -1", r"`rl.learning_rate` must be from 0 to 10\^9. Received -1."),
    (CART, "batch_size: 0", r"`rl.batch_size` must be from 1 to 10\^9. Received 0."),
    (CART, "batch_size: true", "`rl.batch_size` must be a valid integer"),
    (CART, "buffer_size: '1000'", "`rl.buffer_size` must be a valid integer"),
    (CART, "device: gpu", "`rl`: Expected one of cpu, cuda"),
    (CAR, NOISE + "PinkNoise}", "`rl.action_noise` must have a name: NormalActionNoise"),
    (CAR, NOISE + "ActionRepeatNoise, hold: 0}", "`rl.action_noise.hold` must be an integer"),
    (CAR, NOISE + "NormalActionNoise, sigma: -1}", "`rl.action_noise` must draw finite"),
]
REWARD = [
    (CART, "model: ViT-B-33/openai", '`reward.model` must be "tiny"'),
    (CART, "textured: no", "`reward.textured` is not for CartPole"),
    (CART, "worker_timeouts: {laod: 3}", "`reward.worker_timeouts` must be a mapping of 'load', 'draw', 'encode'"),
    (CART, "ray_options: {num_gpus: 1}", '`reward.ray_options` needs backend="ray"'),
    ("Ant-v5", "prompt: a, alpha: 0.5", "`reward.alpha` above 0 needs a `baseline`"),
    (CART, "name: 'no_such_module:f'", "`reward.name` must name something that can be imported here"),
    (CART, "name: 'own_things:mean_pixl'", "`reward.name` must name something .*no attribute 'mean_pixl'"),
    (CART, "name: clop", "`reward.name`: kind must be one of 'clip', .*Received 'clop'. Did you mean 'clip'"),
    (CART, PIXEL + ", kwargs: {scael: 2}", "`reward.kwargs` must fit 'own_things:mean_pixel', which takes .*'scael'"),
    (CART, PIXEL + ", alpha: 0.5", "`reward.name` and `alpha` cannot both be passed"),
    (CART, "kwargs: {a: 1}", "`reward.kwargs` needs a `reward` to pass them to"),
    (STAND, "camera: []", "`reward.camera` must"),
    (STAND, "camera_config: [track, {distnce: 2}]", "`reward.camera_config` has no field 'distnce'"),
    (STAND, "camera: around, combine_views: 'own_things:relative'", "`reward.combine_views` must map the rewards of"),
]
ENVIRONMENT = [
    (CART, "env_kwargs: {a: 1}", "line 3: `env_kwargs`: .* `env_kwargs` is for IDs of other packages"),
    ("VLMRM/Ant-v5", "", "line 1: `env_name`: The environment .*Wrap Ant-v5, (?!.*Did you mean)"),
    ("Ant-v6", "", "line 1: `env_name` must be a registered ID, .* Received 'Ant-v6'. Did you mean 'Ant-v5'?"),
    ("Ant-v5", "env_kwargs: {zzz: 1}", "line 3: `env_kwargs.zzz`: The environment 'Ant-v5' cannot be used: .*zzz"),
    ("Ant-v5", "env_kwargs: {render_mode: human}", "line 3: `env_kwargs`: .*`env_kwargs` cannot have 'render_mode'"),
    (ENDLESS, "", "`rl.episode_length` must be given: .* has no time limit"),
    (BLIND, "", "line 1: `env_name`: .*rgb_array"),
    ("VLMRM/Humanoid-v0", "rl: {start_near_goal: 1}", "line 3: `rl.start_near_goal` needs a task"),
    (SHORT, "env_kwargs: {actions: true}", "`rl`: The algorithm only supports .* MultiBinary"),
]
ROWS = {
    "rl": [(f"env_name: {id}\nrl: {{{rl}}}", f"line 2: {problem}") for id, rl, problem in RL],
    "reward": [(f"env_name: {id}\nreward: {{{reward}}}", f"line 2: {problem}") for id, reward, problem in REWARD],
    "env": [(f"env_name: {id}\nreward: {{prompt: a, model: tiny}}\n{more}", say) for id, more, say in ENVIRONMENT],
}


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_a_setting_that_cannot_be_used_is_refused(rows, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(run, "_learn", lambda *_: None)
    for text, problem in rows:
        output = refused(capsys, "train", write(text, tmp_path), "--trust-code", "--base-path", tmp_path / "runs")
        assert re.search(rf"\n  {problem}", output), output
        assert not (tmp_path / "runs").exists()


def bomb(levels):
    """Lists of nine times the list before: 9 ** levels values when aliases are expanded."""
    lists = [f"x{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, levels)]
    return "\n".join(["x0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]", *lists]) + "\n"


def test_what_is_no_configuration_or_too_large_is_refused_at_once(tmp_path):
    for text, problem in (
        (bomb(9) + "tags: *a8", "there may be at most 10,000 values, counted again for each alias of them"),
        ("rl:\n  policy_kwargs: " + "[" * 5_000, "there may be at most 32 levels of lists and mappings"),
        ("rl: &a\n  policy_kwargs: *a", "there may be at most 32 levels"),  # refers to itself
        ("a: b\n" * 20_001, r"must have at most 100,000 bytes\. Received 100,005"),
        ("- 3", r"a configuration is a mapping of keys to values. Received \[3\]"),
        ("description: 2020-13-45", "month must be in 1..12"),
        (bytes(range(256)), "cannot be read: 'utf-8' codec"),
        ("rl:\n\tn_steps: 3", "line 2: this is not valid YAML"),
        ("env_name: CartPole-v1\n---\nseed: 3\n", "line 2: this is not valid YAML: but found another document"),
        ("description: !!python/object/apply:os.getcwd []", "line 1: this is not valid YAML"),
    ):
        began = time.process_time()
        with pytest.raises(InputError, match=problem) as raised:
            read_config_file(write(text, tmp_path))
        assert len(str(raised.value)) < 400
        assert time.process_time() - began < 5


def test_messages_are_short_whatever_was_received(tmp_path):
    long = "a" * 9_000
    for text in (
        f"tags: [&a {long}" + ", [*a]" * 4_000 + "]",
        "seed: " + "9" * 9_000,
        f"rl: {{policy_kwargs: {{{long}: {long}}}, n_steps: {long}, {'b' * 9_000}: 1}}",
        f"reward: {{name: {long}}}",
        "\n".join(f"a{i}: 1" for i in range(4_000)),
    ):
        with pytest.raises(ConfigError) as raised:
            read_settings(write("env_name: CartPole-v1\n" + text, tmp_path), {}, trust_code=True)
        assert max(map(len, str(raised.value).splitlines())) < 1_400
        assert len(str(raised.value).splitlines()) <= 52
