"""Commands, in the process of the tests."""

import pytest

from vlmrm_gym.tools.cli import main


def refused(capsys, *arguments):
    """What a command that refuses to go on says, with exit code 2."""
    with pytest.raises(SystemExit) as raised:
        main([str(argument) for argument in arguments])
    output = capsys.readouterr().err
    assert raised.value.code == 2, output
    return output


def write(text, tmp_path):
    """A configuration file of this text."""
    path = tmp_path / "config.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path
