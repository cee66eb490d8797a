"""Every command takes the same names of environments, and the same keyword arguments."""

from contextlib import closing

import pytest
from commands import refused

from vlmrm_gym._util.errors import InputError
from vlmrm_gym.envs.make import is_function
from vlmrm_gym.tools.cli.check import Check
from vlmrm_gym.tools.cli.dataset import Dataset
from vlmrm_gym.tools.cli.settings import parse
from vlmrm_gym.tools.cli.train import configure, id_as_flag
from vlmrm_gym.tools.environments import find_named_task, make_unscored_env
from vlmrm_gym.tools.train.environments import make_envs

NAMES = ("own_things:Own/Short-v0", "own_things:Short")


@pytest.mark.parametrize("name", NAMES)
def test_check_dataset_and_train_take_an_id_or_a_function_and_its_keyword_arguments(name):
    arguments = [name, "--env-kwargs", "{size: 3}"]
    for command, settings in (("check", Check), ("dataset", Dataset)):
        flags = parse(settings, command, arguments)
        with closing(make_unscored_env(flags.id, flags.env_kwargs)) as env:
            assert env.observation_space.shape == (3,)
            assert env.render_mode == "rgb_array"
    config = configure(None, [*id_as_flag(arguments), "--reward.name", "ground_truth", "--rl.episode-length", "4"])
    with closing(make_envs(config, 2)) as envs:
        assert envs.observation_space.shape == (2, 3)


def test_a_name_is_an_id_if_it_is_registered_or_cannot_stand_in_code():
    assert [is_function(name) for name in ("Ant-v5", "VLMRM/CartPole-v1", *NAMES)] == [False, False, False, True]
    assert not is_function("own_things:NotThere-v0")
    assert is_function("own_things:not_there")


def test_each_command_refuses_a_name_that_is_neither_in_one_sentence(capsys):
    rule = "must be a registered ID, module:ID or package.module:function. Received "
    for name, reason in (
        ("VLMRM/CartPol-v1", "Did you mean 'VLMRM/CartPole-v1'?"),
        ("own_things:not_there", "AttributeError(\"module 'own_things' has no attribute 'not_there'\")"),
        ("no_module:make", "ModuleNotFoundError(\"No module named 'no_module'\")"),
    ):
        for command in ("check", "train", "dataset"):
            error = refused(capsys, command, name, *(["--out", "x"] if command == "dataset" else []))
            assert error.count(rule) == 1
            assert reason in error
            assert error.lower().count("did you mean") == ("CartPol" in name)
    with pytest.raises(InputError, match="Received None"):
        find_named_task(None)
