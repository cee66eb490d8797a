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

from vlmrm_gym.preferences.answers import AnswersFile, ask
from vlmrm_gym.preferences.labelers import GroundTruthLabeler
from vlmrm_gym.preferences.pairs import Answer

PAIRS = make_pairs(8)


class Counting:
    """A labeler that is right, and counts what it is asked; it raises at question `fails_at`."""

    def __init__(self, identity="counting", fails_at=None):
        self.identity, self.asked, self.fails_at = identity, [], fails_at

    def answers(self, pairs):
        for number, pair in enumerate(pairs):
            if len(self.asked) == self.fails_at:
                raise RuntimeError("out of order")
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
        again = ask(labeler, PAIRS[::-1], file)
        assert [record.pair for record in file.records()] == labeler.asked
    assert again[::-1][:5] == first
    assert [answer.preference for answer in again] == [is_second(pair) for pair in PAIRS[::-1]]
    assert sorted(labeler.asked) == sorted(pair.key for pair in PAIRS)


def test_a_pair_that_is_there_twice_is_asked_once():
    labeler = Counting()
    answers = ask(labeler, [*PAIRS[:2], *PAIRS[:2]])
    assert answers[:2] == answers[2:]
    assert len(labeler.asked) == 2


def test_a_file_in_which_earlier_versions_claimed_pairs_is_read(path):
    """Those that were not answered are asked about."""
    with AnswersFile(path) as file:
        ask(Counting(), PAIRS[:2], file)
    connection = sqlite3.connect(path)
    connection.execute("UPDATE answers SET claimed_by = 'host 1 5', claimed_at = 7e9")
    connection.execute("UPDATE answers SET answered_at = NULL, preference = NULL WHERE pair = ?", (PAIRS[0].key,))
    connection.commit()
    connection.close()
    labeler = Counting()
    with AnswersFile(path) as file:
        assert [answer.preference for answer in ask(labeler, PAIRS[:2], file)] == list(map(is_second, PAIRS[:2]))
        assert (len(file.records()), labeler.asked) == (2, [PAIRS[0].key])


def test_labelers_are_kept_apart_with_their_provenance(path):
    with AnswersFile(path) as file:
        ask(Counting("a"), PAIRS[:2], file)
        ask(Counting("b"), PAIRS[:3], file)
        assert [record.labeler for record in file.records()] == ["a"] * 2 + ["b"] * 3
        record = file.records()[0]
        assert record.answer.details == {"number": 0}
        assert record.date.startswith("20")
        assert record.version.count(".") >= 2
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


def test_a_later_answer_replaces_the_former(path):
    def change_mind(pairs):
        yield 0, Answer(preference=0.0)
        yield 0, Answer(preference=1.0)

    labeler = Counting()
    labeler.answers = change_mind
    with AnswersFile(path) as file:
        assert ask(labeler, PAIRS[:1], file)[0].preference == 1.0
        assert [record.answer.preference for record in file.records()] == [1.0]


def test_an_answer_that_was_taken_back_is_asked_again(path):
    def take_back(pairs):
        yield 0, Answer(preference=0.0)
        yield 0, None
        raise RuntimeError("it ends here")

    labeler = Counting()
    labeler.answers = take_back
    with AnswersFile(path) as file:
        with pytest.raises(RuntimeError, match="it ends here"):
            ask(labeler, PAIRS[:1], file)
        assert file.records() == []
        assert ask(Counting(), PAIRS[:1], file)[0].preference == is_second(PAIRS[0])


def test_answers_before_an_error_are_kept(path):
    with AnswersFile(path) as file:
        with pytest.raises(RuntimeError, match="out of order"):
            ask(Counting(fails_at=3), PAIRS, file)
        assert len(file.records()) == 3
        resumed = Counting()
        assert None not in ask(resumed, PAIRS, file)
        assert len(resumed.asked) == len(PAIRS) - 3


ASKING = """
import sys
from poles import make_pairs
from vlmrm_gym.preferences.answers import AnswersFile, ask
from vlmrm_gym.preferences.endpoint import EndpointLabeler

with AnswersFile(sys.argv[1]) as file:
    ask(EndpointLabeler(model="m", base_url=sys.argv[2], stages=1, concurrency=2), make_pairs(12), file)
"""


def test_after_sigkill_nothing_is_lost_and_only_what_was_under_way_is_asked_again(path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["tests/helpers", *sys.path])}
    with VLMServer(logprobs="tokens", latency=0.05) as server:
        command = [sys.executable, "-c", ASKING, str(path), server.url]
        process = subprocess.Popen(command, env=environment, cwd=Path(__file__).parents[2])
        while server.requests < 10:
            assert process.poll() is None
            time.sleep(0.005)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        with AnswersFile(path) as file:
            kept = len(file.records())
        assert 2 <= kept < 12
        assert subprocess.run(command, env=environment, cwd=Path(__file__).parents[2]).returncode == 0
        with AnswersFile(path) as file:
            assert len(file.records()) == 12
            assert [answer.preference > 0.5 for answer in ask_again(file, server.url)] == [
                is_second(p) for p in make_pairs(12)
            ]
        assert len(server.asked) == 24
        # Two pairs of two questions each were under way, and one more may have been answered but not written.
        assert sum(count - 1 for count in server.asked.values()) <= 6
        assert KEY.encode() not in path.read_bytes()


def test_ctrl_c_ends_at_once_while_a_server_does_not_answer(path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["tests/helpers", *sys.path])}
    with VLMServer(latency=60) as server:
        command = [sys.executable, "-c", ASKING, str(path), server.url]
        process = subprocess.Popen(command, env=environment, cwd=Path(__file__).parents[2], stderr=subprocess.PIPE)
        while not server.requests:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert b"KeyboardInterrupt" in process.communicate(timeout=30)[1]


def ask_again(file, address):
    """Replay: nothing is asked."""
    from vlmrm_gym.preferences.endpoint import EndpointLabeler

    return ask(EndpointLabeler(model="m", base_url=address, stages=1, retries=0), make_pairs(12), file)


def test_a_file_of_another_prompt_is_refused(path):
    with AnswersFile(path) as file:
        ask(Counting(), PAIRS[:1], file)
        with pytest.raises(ValueError, match=r"about the prompt 'pole vertically.*Received 'a fallen pole'"):
            ask(Counting(), make_pairs(1, prompt="a fallen pole"), file)
    with pytest.raises(ValueError, match="about the prompt"):
        AnswersFile(path, prompt="a fallen pole")


@pytest.mark.parametrize(
    "content", [b"no database at all, but long enough " * 40, b"SQLite format 3\0" + b"\xff" * 5_000]
)
def test_a_damaged_file_is_refused(path, content):
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is damaged"):
        AnswersFile(path)
    assert path.read_bytes() == content


def test_a_database_of_something_else_is_refused(path):
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE other (x)")
    connection.commit()
    connection.close()
    with pytest.raises(ValueError, match="not a file of answers"):
        AnswersFile(path)


def read_all(path):
    with AnswersFile(path) as file:
        return file.prompt, file.records(), file.asked(), file.spent("someone")


FOREVER = (
    "CREATE VIEW prompt (text) AS WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x FROM r) SELECT sum(x) FROM r"
)


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        (f"DROP TABLE prompt; {FOREVER}", "has more in it, 'CREATE VIEW prompt"),
        ("CREATE VIEW more AS SELECT 1", "has more in it, 'CREATE VIEW more"),
        ("CREATE TRIGGER t AFTER INSERT ON prompt BEGIN DELETE FROM answers; END", "has more in it, 'CREATE TRIGGER"),
        ("CREATE INDEX i ON answers (upper(details))", "has more in it, 'CREATE INDEX i"),
        ("DROP TABLE spent; CREATE TABLE spent (asker, calls AS (1))", "has more in it, 'CREATE TABLE spent"),
        ("DELETE FROM prompt; INSERT INTO prompt VALUES (x'00ff')", "damaged, or none: a value is of the type bytes"),
        ("UPDATE answers SET labeler = x'00'", "damaged, or none: a value is of the type bytes"),
        ("UPDATE answers SET answered_at = x'00'", "damaged, or none: a value is of the type bytes"),
        ("UPDATE answers SET version = NULL", "damaged, or none: a value is of the type NoneType"),
        ("UPDATE answers SET preference = 'high'", "damaged, or none: a value is of the type str"),
        (
            "UPDATE answers SET preference = 1e300",
            "an answer cannot be read: `preference` must be",
        ),
        ("UPDATE answers SET confidence = -1", "an answer cannot be read: `confidence` must be a number from 0 to 1"),
        ("UPDATE answers SET confidence = NULL", "damaged, or none: a value is of the type NoneType"),
        ("UPDATE answers SET details = '[1]'", "calls, tokens, output_tokens, seconds must be numbers of at least 0"),
        ('UPDATE answers SET details = \'{"calls": "many"}\'', "must be numbers of at least 0"),
        ("UPDATE answers SET details = '{\"tokens\": -1e9}'", "must be numbers of at least 0"),
        ("UPDATE answers SET details = '{\"tokens\": 1e999}'", "must be numbers of at least 0"),
        (f"UPDATE answers SET details = '{'[' * 5_000}'", "an answer cannot be read: JSON may have at most 32 levels"),
        ("UPDATE answers SET details = 1.5", "must be numbers of at least 0"),
        ("UPDATE pairs SET first = '[0, 0, 0]'", "a pair is of four numbers of at least 0"),
        ("UPDATE pairs SET second = '[0, 0, 0, -1]'", "a pair is of four numbers of at least 0"),
        ("UPDATE pairs SET second = '{'", "a pair cannot be read"),
        ("UPDATE pairs SET views = x'00'", "damaged, or none: a value is of the type bytes"),
        ("UPDATE spent SET calls = 'many'", "damaged, or none: a value is of the type str"),
    ],
)
def test_a_file_of_a_stranger_has_our_tables_and_values_of_their_types(statement, message, path):
    """And nothing is computed by it: the first would run for ever."""
    with AnswersFile(path) as file:
        ask(Counting(), PAIRS, file)
        file.spend("someone", 1, 1)
    connection = sqlite3.connect(path)
    connection.executescript(statement)
    connection.close()
    with pytest.raises(ValueError, match=message):
        read_all(path)


@pytest.mark.parametrize("content", [b"", None])
def test_what_only_reads_makes_no_file_of_answers(content, path):
    if content is None:
        sqlite3.connect(path).execute("PRAGMA user_version = 1").connection.close()
        content = path.read_bytes()
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is not a file of answers"):
        AnswersFile(path, exists=True)
    assert path.read_bytes() == content
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        AnswersFile(path.with_name("nowhere"), exists=True)
    with pytest.raises(FileNotFoundError, match="folder of the file of answers ''"):
        AnswersFile("")
    os.mkfifo(path.with_name("pipe"))
    with pytest.raises(ValueError, match="Received a pipe"):
        AnswersFile(path.with_name("pipe"))


def test_a_folder_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        AnswersFile(tmp_path / "nowhere" / "answers.db")


def test_the_ground_truth_goes_into_the_file_as_any_labeler(path):
    with AnswersFile(path) as file:
        ask({"kind": "ground_truth", "mistakes": 0.1}, PAIRS, file)
        assert {record.labeler for record in file.records()} == {GroundTruthLabeler(mistakes=0.1).identity}
