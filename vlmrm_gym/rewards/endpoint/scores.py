"""The file of a model's scores and replies: nothing is asked twice."""

import json
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vlmrm_gym._util.database import Database
from vlmrm_gym._util.untrusted import parse_json
from vlmrm_gym.rewards.endpoint.questioner import Budget
from vlmrm_gym.rewards.endpoint.settings import EndpointSettings

_APPLICATION_ID = 0x564C4D53
"""Of our files among those of SQLite: "VLMS"."""
_TABLE = "CREATE TABLE IF NOT EXISTS scores (key TEXT PRIMARY KEY, asker TEXT, score REAL, details TEXT, date TEXT);"


class ScoresFile(Database):
    """Stores scores of states, and replies of conversations, without one, in an SQLite file, see `Database`."""

    def __init__(self, path: Path | None = None) -> None:
        super().__init__(path, _APPLICATION_ID, _TABLE, "file of scores")
        self.asking = threading.Lock()
        """Held while a server is asked for a score that will be written here."""
        self._budgets: dict[EndpointSettings, Budget] = {}

    def budget(self, settings: EndpointSettings) -> Budget:
        """The budget that all users of this file with equal settings share in this process."""
        return self._budgets.setdefault(settings, Budget(settings.max_calls, settings.max_total_tokens))

    def find(self, keys: Sequence[str]) -> dict[str, float]:
        """Find the stored scores by their keys."""
        wanted = json.dumps(list(set(keys)))
        statement = "SELECT key, score FROM scores WHERE score IS NOT NULL AND key IN (SELECT value FROM json_each(?))"
        scores = dict(self._read(statement, wanted, types=(str, float)))
        if wrong := [score for score in scores.values() if not 0 <= score <= 1]:
            raise ValueError(f"The file of scores {self.path} is damaged: a score must be from 0 to 1, not {wrong[0]}.")
        return scores

    def find_details(self, key: str) -> dict[str, Any] | None:
        """Find the details that `write` stored under a key; None if there are none."""
        rows = self._read("SELECT details FROM scores WHERE key = ?", key, types=(str,))
        return parse_json(rows[0][0]) if rows else None

    def write(self, key: str, asker: str, score: float | None, details: Mapping[str, Any]) -> None:
        """Write a score, the `answer_key` of who asked for it, and its details."""
        values = (key, asker, score, json.dumps(details), datetime.now(UTC).isoformat())
        with self._transaction():
            self._connection.execute("INSERT OR REPLACE INTO scores VALUES (?, ?, ?, ?, ?)", values)
