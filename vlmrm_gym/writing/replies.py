"""The file of replies: everything that a model has said in conversations, so that nothing is asked twice."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vlmrm_gym.database import Database

_APPLICATION_ID = 0x564C4D52
"""Of our files among those of SQLite: "VLMR"."""
_TABLES = (
    "CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, asker TEXT, calls INTEGER, tokens INTEGER, reply TEXT);"
)


class RepliesFile(Database):
    """Replies to questions, in an SQLite file.

    Args:
        path: The file, made if there is none.

    Raises:
        FileNotFoundError, OSError, ValueError: As `Database`.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, _APPLICATION_ID, _TABLES, "file of replies")

    def find(self, key: str) -> dict[str, Any] | None:
        """What `write` wrote; None if the question was not asked."""
        rows = self._read("SELECT reply FROM replies WHERE key = ?", key)
        return json.loads(rows[0][0]) if rows else None

    def sum_spending(self, asker: str) -> tuple[int, int]:
        """Calls and tokens of all that was asked by one asker."""
        ((calls, tokens),) = self._read("SELECT sum(calls), sum(tokens) FROM replies WHERE asker = ?", asker)
        return calls or 0, tokens or 0

    def write(self, key: str, asker: str, reply: dict[str, Any]) -> None:
        """Write a reply with its `calls` and `tokens`, what asked for it, and the date."""
        dated = json.dumps({**reply, "date": datetime.now(UTC).isoformat()})
        with self._transaction():
            self._connection.execute(
                "INSERT OR REPLACE INTO replies VALUES (?, ?, ?, ?, ?)",
                (key, asker, reply["calls"], reply["tokens"], dated),
            )
