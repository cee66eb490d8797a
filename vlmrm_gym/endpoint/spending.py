"""A file that also knows what its askers have spent on requests."""

from pathlib import Path

from vlmrm_gym.database import Database

_TABLE = "CREATE TABLE IF NOT EXISTS spent (asker TEXT PRIMARY KEY, calls INTEGER, tokens INTEGER);"


class SpendingFile(Database):
    """An SQLite file that also has what its askers spent. Arguments and errors are those of `Database`."""

    def __init__(
        self, path: str | Path | None, application_id: int, tables: str, noun: str, *, exists: bool = False
    ) -> None:
        super().__init__(path, application_id, tables + _TABLE, noun, exists=exists)

    def spent(self, asker: str) -> tuple[int, int]:
        """Requests and tokens of one asker, in this process or another, those of questions that failed included."""
        found = self._read("SELECT calls, tokens FROM spent WHERE asker = ?", asker, types=(int, int))
        if wrong := [number for row in found for number in row if number < 0]:
            raise ValueError(f"The {self._noun} {self.path} is damaged: what was spent must be from 0, not {wrong[0]}.")
        return found[0] if found else (0, 0)

    def spend(self, asker: str, calls: int, tokens: int) -> None:
        """Add to what an asker spent."""
        with self._transaction():
            self._connection.execute(
                "INSERT INTO spent VALUES (?, ?, ?) ON CONFLICT (asker) "
                "DO UPDATE SET calls = calls + excluded.calls, tokens = tokens + excluded.tokens",
                (asker, calls, tokens),
            )
