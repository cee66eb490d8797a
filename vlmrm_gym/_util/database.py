"""An SQLite file that threads, and several processes of one host, may share. It may be a stranger's."""

import sqlite3
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from vlmrm_gym._util.untrusted import check_file
from vlmrm_gym._util.validation import short_repr

_MAX_LENGTH = 2**24
"""Bytes of a value or of a statement."""


class Database:
    """Keeps tables in a file, which is made if there is none; without a path, in memory.

    `application_id` is of files of this kind among those of SQLite, `tables` are statements, each ended by a semicolon,
    and messages call the file by the `noun`. With `exists` an empty file is not made one of this kind.

    Raises a FileNotFoundError if its folder does not exist, a ValueError if it is another database, has more in it than
    these tables or is damaged, and an OSError if it cannot be used.
    """

    def __init__(
        self, path: str | Path | None, application_id: int, tables: str, noun: str, *, exists: bool = False
    ) -> None:
        self.path, self._noun = path, noun
        self._lock = threading.RLock()
        if path is not None:
            if not str(path) or not Path(path).parent.is_dir():
                raise FileNotFoundError(f"The folder of the {noun} {str(path)!r} does not exist.")
            if exists or Path(path).exists():
                check_file(path)
        self._connection = sqlite3.connect(
            ":memory:" if path is None else path, timeout=60, isolation_level=None, check_same_thread=False
        )
        try:
            self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_LENGTH)
            self._connection.execute("PRAGMA trusted_schema = OFF")
            with self._transaction():
                (known,) = self._connection.execute("PRAGMA application_id").fetchone()
                schema = _schema(self._connection)
                if (schema or exists) and known != application_id:
                    raise ValueError(f"{path} is not a {noun}. Pass another name.")
                for statement in tables.split(";")[:-1]:
                    self._connection.execute(statement)
                with closing(sqlite3.connect(":memory:")) as empty:
                    empty.executescript(tables)
                    more = schema - _schema(empty)
                if more:  # a view in the place of a table may take for ever
                    raise ValueError(f"{path} is not a {noun}: it has more in it, {short_repr(sorted(more)[0])}.")
                if not schema:
                    self._connection.execute(f"PRAGMA application_id = {application_id}")
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = NORMAL")  # survives SIGKILL, if not a loss of power
        except BaseException:
            self._connection.close()
            raise
        weakref.finalize(self, self._connection.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    def _read(self, statement: str, *values: Any, types: Sequence[Any]) -> list[Any]:
        """Run a query; its rows must have these types, which SQLite does not enforce."""
        with self._refusing_damage():
            rows = self._connection.execute(statement, values).fetchall()
            for value, right in ((value, one) for row in rows for value, one in zip(row, types, strict=True)):
                if not isinstance(value, right):
                    raise sqlite3.DatabaseError(f"a value is of the type {type(value).__name__}")
            return rows

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._refusing_damage():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _refusing_damage(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            except sqlite3.OperationalError as error:  # locked, full, or not writable
                raise OSError(f"The {self._noun} {self.path} cannot be used: {error}.") from error
            except sqlite3.DatabaseError as error:
                raise ValueError(f"The {self._noun} {self.path} is damaged, or none: {error}.") from error


def _schema(connection: sqlite3.Connection) -> set[str]:
    """Tables, views, triggers and indices: the statements that made them."""
    rows = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    return {" ".join(str(statement).split()) for (statement,) in rows}
