"""The command `vlmrm-gym labels`."""

import pytest
from PIL import Image
from poles import make_pairs

from vlmrm_gym.cli import main
from vlmrm_gym.preferences.answers import AnswersFile, ask
from vlmrm_gym.preferences.ground_truth import GroundTruthLabeler

PAIRS = make_pairs(20)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "answers.db"
    with AnswersFile(path) as file:
        ask(GroundTruthLabeler(), PAIRS, file)
        ask(GroundTruthLabeler(mistakes=0.3, skips=0.2, seed=1), PAIRS, file)
    return path


def test_it_shows_counts_agreement_and_disputed_pairs(path, tmp_path, capsys):
    with AnswersFile(path) as file:
        faulty = {r.pair: r.answer.preference for r in file.records() if 'mistakes": 0.3' in r.labeler}
        truth = {r.pair: r.answer.preference for r in file.records() if 'mistakes": 0.0' in r.labeler}
    decided = [pair for pair, preference in faulty.items() if preference is not None]
    disputed = [pair for pair in decided if faulty[pair] != truth[pair]]
    assert 0 < len(disputed) < len(decided) < 20  # or else this test shows nothing
    main(["labels", str(path), "--pictures", str(tmp_path / "pictures")])
    lines = capsys.readouterr().out.splitlines()
    (row,) = (
        line for line in lines if "ground_truth" in line and "mistakes" in line and line.count("ground_truth") == 1
    )
    cells = [cell.strip() for cell in row.split("│")[1:-1]]
    assert cells[0] == "ground_truth mistakes=0.3, seed=1, skips=0.2"  # what is not the default
    assert [int(cell) for cell in cells[1:9]] == [
        20,
        sum(faulty[pair] == 0 for pair in decided),
        sum(faulty[pair] == 1 for pair in decided),
        0,
        20 - len(decided),
        0,
        0,
        0,
    ]
    assert f"{1 - len(disputed) / len(decided):.1%}" in "".join(lines)
    pictures = list((tmp_path / "pictures").iterdir())
    assert {picture.stem for picture in pictures} == set(disputed)
    with Image.open(pictures[0]) as picture:
        assert picture.width >= 2 * 180


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: None, "There is no file"),
        (lambda path: path.write_text("x" * 2_000), "is damaged"),
    ],
)
def test_what_is_no_file_of_answers_is_refused(make, said, tmp_path, capsys):
    make(tmp_path / "answers.db")
    with pytest.raises(SystemExit) as caught:
        main(["labels", str(tmp_path / "answers.db")])
    assert caught.value.code == 2
    assert said in capsys.readouterr().err
