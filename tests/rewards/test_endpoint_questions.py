"""What a server is asked about a state, or a pair of them."""

from vlmrm_gym.preferences.endpoint_prompts import show_pair
from vlmrm_gym.rewards.endpoint_questions import make_question


def test_all_views_are_in_one_question():
    (message,) = make_question("a goal", [b"left", b"right"], 5)
    parts = [part.get("text", "image") for part in message["content"]]
    assert "a goal" in parts[0]
    assert "same moment" in parts[0]
    assert parts.count("image") == 2
    assert "to 4" in parts[-1]


def test_the_question_comes_last_and_what_is_shared_first():
    (message,) = show_pair("a goal", [b"first", b"second"], "Which?")
    kinds = [part["type"] for part in message["content"]]
    assert kinds == ["text", "text", "image_url", "text", "image_url", "text"]
    assert "a goal" in message["content"][0]["text"]
    assert message["content"][-1]["text"] == "Which?"
