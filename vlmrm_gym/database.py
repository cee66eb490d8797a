"""An SQLite file that threads, and several processes of one host, may share."""

import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self


class Database:
    """Tables in a file.

    Args:
        path: The file, made if there is none; None: in memory.
        application_id: Of files of this kind among those of SQLite.
        tables: Statements that make the tables, if there are none, each ended by a semicolon.
        noun: What messages call the file.

    Raises:
        FileNotFoundError: The folder of the file does not exist.
        ValueError: It is another database, or damaged.
        OSError: It cannot be used.
    """

    def __init__(self, path: str | Path | None, application_id: int, tables: str, noun: str) -> None:
        self.path, self._noun = path, noun
        self._lock = threading.RLock()
        if path is not None and not Path(path).parent.is_dir():
            raise FileNotFoundError(f"The folder of the {noun} {path} does not exist.")
        self._connection = sqlite3.connect(
            ":memory:" if path is None else path, timeout=60, isolation_level=None, check_same_thread=False
        )
        try:
            with self._transaction():
                (known,) = self._connection.execute("PRAGMA application_id").fetchone()
                (count,) = self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
                if count and known != application_id:
                    raise ValueError(f"{path} is a database, but not a {noun}. Pass another name.")
                for statement in tables.split(";")[:-1]:
                    self._connection.execute(statement)
                if not count:
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

    def _read(self, statement: str, *values: Any) -> list[Any]:
        with self._refusing_damage():
            return self._connection.execute(statement, values).fetchall()

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
