"""README.md and the guides say what is so: their Python runs, flags and keys exist, quoted messages are raised.

The Python blocks of a page share one namespace; they use the bundled model and download nothing. Directly before one
that cannot run here stands why: `<!-- not run: needs a download -->`. It is compiled only.
"""

import ast
import pkgutil
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import LIBRARIES_WARN

from vlmrm_gym.tools import cli
from vlmrm_gym.tools.train.config_file import read_config_file

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

BLOCK = re.compile(
    r"^(?P<indent> *)(?P<fence>`{3,})(?P<language>\S*)[^\n]*\n(?P<code>.*?)^(?P=indent)(?P=fence)$", re.M | re.S
)
NOT_RUN = re.compile(r"<!-- not run: \S[^\n]* -->\n+ *\Z")


class Block(NamedTuple):
    """A code block of a page."""

    line: int
    """Of the page, from 1, where the code begins."""
    code: str
    runs: bool


def read_blocks(text: str, language: str = "python") -> Iterator[Block]:
    """The code blocks of a page in one language."""
    for found in BLOCK.finditer(text):
        if found["language"] != language:
            continue
        code = re.sub(rf"^{found['indent']}", "", found["code"], flags=re.M)
        line = text.count("\n", 0, found.start("code")) + 1
        yield Block(line, code, NOT_RUN.search(text, 0, found.start()) is None)


def run_page(path: Path) -> None:
    """Compile all Python blocks of a page, then run those that can run, in one namespace."""
    blocks = list(read_blocks(path.read_text()))
    compiled = [compile("\n" * (block.line - 1) + block.code, str(path), "exec") for block in blocks]
    namespace = {"__name__": "page"}
    for block, code in zip(blocks, compiled, strict=True):
        if block.runs:
            exec(code, namespace)


WITH_PYTHON = [path for path in PAGES if any(read_blocks(path.read_text()))]
assert len(WITH_PYTHON) > 5


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The bundled model does not know")
@LIBRARIES_WARN
@pytest.mark.parametrize("path", WITH_PYTHON, ids=lambda path: str(path.relative_to(ROOT)))
def test_python_blocks_run(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_page(path)


def test_configurations_have_keys_that_exist(tmp_path):
    for path in PAGES:
        for block in read_blocks(path.read_text(), "yaml"):
            file = tmp_path / "config.yaml"
            file.write_text(block.code)
            assert list(read_config_file(file).problems) == [], f"{path.relative_to(ROOT)}:{block.line}"


def shell_commands() -> Iterator[tuple[str, str]]:
    """Programs that the pages call, and the flags that they pass, without values."""
    for path in PAGES:
        for block in read_blocks(path.read_text(), "bash"):
            for line in block.code.splitlines():
                words = shlex.split(line, comments=True)
                size = {"vlmrm-gym": 2, "python": 2}.get(words[0] if words else "")
                size = 3 if words[:2] == ["vlmrm-gym", "program"] else size  # it has commands of its own
                for word in words[size or len(words) :]:
                    if word.startswith("--"):
                        yield " ".join(words[:size]), word.partition("=")[0]


def test_flags_exist(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    flags: dict[str, set[str]] = {}
    for program, flag in shell_commands():
        flags.setdefault(program, set()).add(flag)
    for program, passed in flags.items():
        _, command_or_file, *more = program.split()
        more += ["--videos"] if program == "vlmrm-gym fit" else []  # the form whose flags the pages show
        help_flag = "--help-all" if command_or_file == "train" else "--help"
        monkeypatch.setattr(sys, "argv", [command_or_file, *more, help_flag])
        is_file = program.startswith("python")
        run = partial(runpy.run_path, command_or_file, run_name="__main__") if is_file else partial(cli.main, sys.argv)
        with pytest.raises(SystemExit):
            run()
        assert passed <= set(re.findall(r"--[a-z][a-z0-9.-]*", capsys.readouterr().out)), program


def test_names_and_files_of_the_package_exist():
    """Dotted names of ours, and paths of our files, in all documents but those of the past."""
    for path in [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]:
        text = path.read_text()
        for name in set(re.findall(r"\bvlmrm_gym(?:\.[A-Za-z]\w*)+", text)):
            assert pkgutil.resolve_name(name) is not None, f"{path.relative_to(ROOT)}: {name}"
        for file in re.findall(r"\b(?:vlmrm_gym|tests|examples|benchmarks|bundled_model)/[\w/]+\.\w+", text):
            assert (ROOT / file).exists(), f"{path.relative_to(ROOT)}: {file}"


def test_quoted_messages_and_keys_of_infos_and_tags_are_in_the_source():
    """Lines of troubleshooting.md that begin with `>` quote messages of the library."""
    strings = [
        node.value
        for path in (ROOT / "vlmrm_gym").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    quotes = re.findall(r"^> (.+)$", (ROOT / "docs" / "guides" / "troubleshooting.md").read_text(), flags=re.M)
    assert len(quotes) > 5
    assert [quote for quote in quotes if not any(quote in text for text in strings)] == []
    strings += ["rollout/ep_rew_mean", "rollout/success_rate"]  # Stable-Baselines3's tags
    for path in PAGES:
        if path.name == "moving_over.md":  # names those of the published code, too
            continue
        for name in re.findall(r"`((?:_?vlm_|rollout/)\w+)`", path.read_text().replace("vlmrm_", "")):
            assert any(name in text for text in strings), f"{path.relative_to(ROOT)}: {name}"
