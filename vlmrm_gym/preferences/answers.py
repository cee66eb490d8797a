"""Asking a labeler about pairs, so that nothing is asked twice."""

from collections.abc import Callable, Sequence
from typing import Any

from vlmrm_gym.preferences.answers_file import COUNTS, AnswersFile
from vlmrm_gym.preferences.labelers import resolve_labeler
from vlmrm_gym.preferences.pairs import Answer, Pair


def ask(
    labeler: Any,
    pairs: Sequence[Pair],
    file: AnswersFile | None = None,
    *,
    progress: Callable[[str], None] | None = None,
) -> list[Answer | None]:
    """Ask a labeler about pairs. What is in the file is not asked again.

    Args:
        labeler: As for `resolve_labeler`.
        pairs: The pairs; the same one may be there twice.
        file: Where answers are kept; None: in memory, for this call.
        progress: Called with a line about progress after each answer: calls, tokens, cost and time, where known.

    Returns:
        An answer a pair; None where it was skipped or is not answered: the budget is used up.

    Raises:
        ValueError: The file is of another prompt.
        Exception: Whatever the labeler raises. The answers so far are in the file.
    """
    labeler = resolve_labeler(labeler)
    if file is None:
        with AnswersFile() as file:
            return ask(labeler, pairs, file, progress=progress)
    known, answered = file.find(labeler.identity, pairs), dict[str, Answer]()
    missing = list({pair.key: pair for pair in pairs if pair.key not in known}.values())
    for number, answer in labeler.answers(missing) if missing else ():
        pair = missing[number]
        if answer is None:
            file.take_back(labeler.identity, pair.key)
            answered.pop(pair.key, None)
            continue
        file.write(labeler.identity, pair, answer)
        answered[pair.key] = answer
        if progress is not None:
            progress(describe_progress(list(answered.values()), len(missing), getattr(labeler, "price", None)))
    found = known | answered
    answers = (found.get(pair.key) for pair in pairs)
    return [None if answer is None or answer.preference is None else answer for answer in answers]


def describe_progress(answers: Sequence[Answer], total: int, price: tuple[float, float] | None = None) -> str:
    """A line about answers so far: "12 of 50 pairs, 1 dropped, 48 calls, 33,120 tokens, $0.012, 1.3 s a call"."""
    sums = {name: sum(answer.details.get(name, 0) for answer in answers) for name in COUNTS}
    parts = [f"{len(answers)} of {total} pairs"]
    dropped = sum("dropped" in answer.details for answer in answers)
    skipped = sum(answer.preference is None for answer in answers) - dropped
    parts += [f"{count} {what}" for count, what in ((skipped, "skipped"), (dropped, "dropped")) if count]
    if sums["calls"]:
        parts += [f"{sums['calls']:,} calls", f"{sums['tokens']:,} tokens"]
        if price is not None:
            inputs = sums["tokens"] - sums["output_tokens"]
            parts.append(f"${(inputs * price[0] + sums['output_tokens'] * price[1]) / 1e6:.4f}")
        parts.append(f"{sums['seconds'] / sums['calls']:.1f} s a call")
    return ", ".join(parts)
