"""The file of answers: nothing is asked twice, nothing is lost, whatever happens to who asks."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from poles import PROMPT, is_second, make_pairs
from vlm_server import KEY, VLMServer

from vlmrm_gym.learning import Answer, AnswersFile, EndpointLabeler, ask

PAIRS = make_pairs(8)


class Counting:
    """A labeler that is right, and counts what it is asked."""

    def __init__(self, answer_key="counting"):
        self.answer_key, self.asked = answer_key, []

    def answers(self, pairs):
        for number, pair in enumerate(pairs):
            self.asked.append(pair.key)
            yield number, Answer(preference=is_second(pair), details={"number": number})


@pytest.fixture
def path(tmp_path):
    return tmp_path / "answers.db"


def test_what_is_in_the_file_is_not_asked_again(path):
    labeler = Counting()
    with AnswersFile(path) as file:
        first = ask(labeler, PAIRS[:5], file)
    with AnswersFile(path) as file:
        again = ask(labeler, [*PAIRS[::-1], PAIRS[7]], file)[:-1]  # one is there twice
        assert [record.pair for record in file.records()] == labeler.asked
    assert again[::-1][:5] == first
    assert [answer.preference for answer in again] == [is_second(pair) for pair in PAIRS[::-1]]
    assert sorted(labeler.asked) == sorted(pair.key for pair in PAIRS)


def test_labelers_are_kept_apart(path):
    with AnswersFile(path) as file:
        ask(Counting("a"), PAIRS[:2], file)
        ask(Counting("b"), PAIRS[:3], file)
        assert [record.labeler for record in file.records()] == ["a"] * 2 + ["b"] * 3
        assert file.records()[0].answer.details == {"number": 0}
        assert file.prompt == PROMPT


def test_a_skipped_pair_is_not_asked_again_and_one_without_an_answer_is(path):
    asked = []

    class Shy(Counting):
        def answers(self, pairs):
            asked.extend(pair.key for pair in pairs)
            yield 0, Answer(preference=None)

    with AnswersFile(path) as file:
        assert ask(Shy(), PAIRS[:2], file) == [None, None]
        assert ask(Shy(), PAIRS[:2], file) == [None, None]
    assert asked == [PAIRS[0].key, PAIRS[1].key, PAIRS[1].key]


def test_a_later_answer_replaces_the_former_and_one_that_was_taken_back_is_asked_again(path):
    """What was answered before an error is kept."""
    labeler = Counting()

    def answers(pairs):
        yield from ((0, Answer(preference=0.0)), (0, Answer(preference=1.0)), (1, Answer(preference=0.0)), (1, None))
        raise RuntimeError("it ends here")

    labeler.answers = answers
    with AnswersFile(path) as file:
        with pytest.raises(RuntimeError, match="it ends here"):
            ask(labeler, PAIRS[:2], file)
        assert [(record.pair, record.answer.preference) for record in file.records()] == [(PAIRS[0].key, 1.0)]
        again = Counting()
        assert [one.preference for one in ask(again, PAIRS[:2], file)] == [1.0, is_second(PAIRS[1])]
        assert again.asked == [PAIRS[1].key]


ASKING = """
import sys
from poles import make_pairs
from vlmrm_gym.learning import AnswersFile, EndpointLabeler, ask

with AnswersFile(sys.argv[1]) as file:
    ask(EndpointLabeler(model="m", base_url=sys.argv[2], stages=1, concurrency=2), make_pairs(12), file)
"""


def start_asking(path, server):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["tests/helpers", *sys.path])}
    command = [sys.executable, "-c", ASKING, str(path), server.url]
    return subprocess.Popen(command, env=environment, cwd=Path(__file__).parents[2], stderr=subprocess.PIPE)


def wait_for_requests(process, server, number):
    while server.requests < number:
        assert process.poll() is None
        time.sleep(0.005)


def test_after_sigkill_nothing_is_lost_and_only_what_was_under_way_is_asked_again(path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with VLMServer(logprobs="tokens", latency=0.05) as server:
        process = start_asking(path, server)
        wait_for_requests(process, server, 10)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        with AnswersFile(path) as file:
            assert 2 <= len(file.records()) < 12
            labeler = EndpointLabeler(model="m", base_url=server.url, stages=1, concurrency=2)
            known = [answer.preference > 0.5 for answer in ask(labeler, make_pairs(12), file)]
            assert known == list(map(is_second, make_pairs(12)))
        assert len(server.asked) == 24
        # Two pairs of two questions each were under way, and one more may have been answered but not written.
        assert sum(count - 1 for count in server.asked.values()) <= 6
        assert KEY.encode() not in path.read_bytes()


def test_ctrl_c_ends_at_once_while_a_server_does_not_answer(path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with VLMServer(latency=60) as server:
        process = start_asking(path, server)
        wait_for_requests(process, server, 1)
        process.send_signal(signal.SIGINT)
        assert b"KeyboardInterrupt" in process.communicate(timeout=30)[1]


def test_a_file_of_another_prompt_is_refused(path):
    with AnswersFile(path) as file:
        ask(Counting(), PAIRS[:1], file)
        with pytest.raises(ValueError, match=r"about the prompt 'pole vertically.*Received 'a fallen pole'"):
            ask(Counting(), make_pairs(1, prompt="a fallen pole"), file)
    with pytest.raises(ValueError, match="about the prompt"):
        AnswersFile(path, prompt="a fallen pole")


FOREVER = (
    "CREATE VIEW prompt (text) AS WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x FROM r) SELECT sum(x) FROM r"
)


STRANGE = [
    (f"DROP TABLE prompt; {FOREVER}", "has more in it, 'CREATE VIEW prompt"),
    ("CREATE TRIGGER t AFTER INSERT ON prompt BEGIN DELETE FROM answers; END", "has more in it, 'CREATE TRIGGER"),
    ("CREATE INDEX i ON answers (upper(details))", "has more in it, 'CREATE INDEX i"),
    ("DROP TABLE pairs; CREATE TABLE pairs (key, views AS (1))", "has more in it, 'CREATE TABLE pairs"),
    ("DELETE FROM prompt; INSERT INTO prompt VALUES (x'00ff')", "damaged, or none: a value is of the type bytes"),
    ("UPDATE answers SET preference = 'high'", "damaged, or none: a value is of the type str"),
    ("UPDATE answers SET preference = 1e300", "an answer cannot be read: `preference` must be"),
    ("UPDATE answers SET confidence = -1", "an answer cannot be read: `confidence` must be a number from 0 to 1"),
    ("UPDATE answers SET details = '{\"tokens\": -1e9}'", "output_tokens, seconds must be numbers of at least 0"),
    (f"UPDATE answers SET details = '{'[' * 5_000}'", "an answer cannot be read: JSON may have at most 32 levels"),
    ("UPDATE pairs SET second = '[0, 0, 0, -1]'", "a pair is of four numbers of at least 0"),
]


def test_a_file_of_a_stranger_has_our_tables_and_values_of_their_types(tmp_path):
    """And nothing is computed by it: the first would run for ever."""
    for number, (statement, message) in enumerate(STRANGE):
        path = tmp_path / f"{number}.db"
        with AnswersFile(path) as file:
            ask(Counting(), PAIRS[:1], file)
        connection = sqlite3.connect(path)
        connection.executescript(statement)
        connection.close()
        with pytest.raises(ValueError, match=message), AnswersFile(path) as file:
            _ = file.prompt, file.records(), file.pairs()


def test_what_is_no_file_of_answers_is_refused_and_left_alone(tmp_path):
    other = sqlite3.connect(tmp_path / "other")
    other.execute("CREATE TABLE other (x)").connection.close()
    (tmp_path / "text").write_bytes(b"no database at all, but long enough " * 40)
    (tmp_path / "damaged").write_bytes(b"SQLite format 3\0" + b"\xff" * 5_000)
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    for name, options, error, message in [
        ("other", {}, ValueError, "not a file of answers"),
        ("text", {}, ValueError, "is damaged"),
        ("damaged", {}, ValueError, "is damaged"),
        ("empty", {"exists": True}, ValueError, "is not a file of answers"),
        ("missing", {"exists": True}, ValueError, "cannot be read: No such file"),
        ("pipe", {}, ValueError, "Received a pipe"),
        ("nowhere/answers.db", {}, FileNotFoundError, "nowhere"),
    ]:
        with pytest.raises(error, match=message):
            AnswersFile(tmp_path / name, **options)
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before
