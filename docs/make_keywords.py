"""Write the tables of docs/reference/keywords.md from the fields of the options. A test says when they are old.

python docs/make_keywords.py
"""

import re
from collections.abc import Iterable
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

from vlmrm_gym.rewards.clip import CLIPFields
from vlmrm_gym.scoring.options import ScoringOptions, option_fields, read_help

PAGE = Path(__file__).parent / "reference" / "keywords.md"


def table(listed: Iterable[tuple[Field[Any], type[Any]]]) -> str:
    """A row for each field of a class: its name, the first sentence of its help and what None is, its default."""
    rows = ["| keyword | meaning | default |", "|---|---|---|"]
    for one, owner in listed:
        sentences = re.split(r"(?<=\.) (?=[A-Z])", read_help(owner)[one.name])
        meaning = " ".join(sentences[:1] + [text for text in sentences[1:] if text.startswith("None")])
        default = "" if one.default is MISSING else "1 GiB" if one.default == 2**30 else f"`{one.default!r}`"
        rows.append(f"| `{one.name}` | {meaning} | {default} |")
    return "\n".join(rows)


def fill(text: str) -> str:
    """The page, with the tables between its marks made anew."""
    single, vector = option_fields(vector=False), option_fields(vector=True)
    known = {one.name for one in single}
    tables = {
        "all": [(one, CLIPFields) for one in fields(CLIPFields)] + [(one, ScoringOptions) for one in single],
        "vector": [(one, ScoringOptions) for one in vector if one.name not in known],
    }
    for name, listed in tables.items():
        before, mark, rest = text.partition(f"<!-- {name}: make_keywords.py -->\n")
        text = f"{before}{mark}\n{table(listed)}\n\n<!-- end -->{rest.partition('<!-- end -->')[2]}"
    return text


if __name__ == "__main__":
    PAGE.write_text(fill(PAGE.read_text()))
