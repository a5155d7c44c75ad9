"""Databases of an unfinished job, as version 0005 of the tables left them in the middle of it.

A cluster on one machine trained from a checkpoint and lost an engine, then a node. Each file has
the database of one moment: `switching` (to the plan after the first loss), `recovering` (from the
second), `running` (three recoveries later, while a node starts that came back).
"""

import re
import sqlite3
from pathlib import Path

from sqlalchemy import Connection

FOLDER = Path(__file__).parent / "databases"
NAMES = ("switching", "recovering", "running")
_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?")


def open_old(name: str) -> sqlite3.Connection:
    """Return an SQLite database as it was."""
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    connection.executescript((FOLDER / f"{name}.sql").read_text())
    return connection


def copy_rows(old: sqlite3.Connection, new: Connection) -> None:
    """Insert what an old SQLite database has into the empty tables of a database of its version."""
    query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    tables = {name for (name,) in old.execute(query)} - {"alembic_version"}
    for table in sorted(tables, key=lambda name: (name != "jobs", name)):
        rows = old.execute(f"SELECT * FROM {table}")  # noqa: S608 - names of our own tables
        names = ", ".join(column for column, *_ in rows.description)
        for row in rows:
            values = ", ".join(map(_literal, row))
            new.exec_driver_sql(f"INSERT INTO {table} ({names}) VALUES ({values})")  # noqa: S608


def _literal(value: object) -> str:
    match value:
        case None:
            return "NULL"
        case str():
            text = f"{value}+00" if _TIME.fullmatch(value) else value
            return "'" + text.replace("'", "''") + "'"
        case _:
            return repr(value)
