"""Brings the database's schema up to the one of this code; runs at every start."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text

from planaria_common.errors import ErrorReason, PlanariaError
from planaria_coordinator.adapters.database.engine import DatabaseEngine
from planaria_coordinator.adapters.database.errors import database_errors
from planaria_coordinator.adapters.database.leadership import read_epoch, take_leadership
from planaria_coordinator.adapters.database.schema import LEADERSHIP

_SCRIPTS = Path(__file__).parent / "migrations"
_LOCK_ID = 0x706C616E  # "plan": of PostgreSQL's advisory lock around migrations


async def migrate(engine: DatabaseEngine) -> int:
    """Replace the coordinator that writes now, bring the tables up to date, return the new epoch.

    Raises:
        ConflictError: a newer version of Planaria wrote the database.
        UnavailableError: the database cannot be reached or written.
    """
    with database_errors(engine.url):
        async with engine.transaction() as transaction:
            transaction.write(_upgrade)
            epoch = await transaction.run(read_epoch)
            await transaction.commit()
    return epoch


def _upgrade(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        # Coordinators that start together: the first migrates, the others find it done.
        connection.execute(text("SELECT pg_advisory_xact_lock(:id)"), {"id": _LOCK_ID})
    config = _config(connection)
    _require_known(connection, ScriptDirectory.from_config(config))
    has_leader = inspect(connection).has_table(LEADERSHIP.name)
    if has_leader:  # it writes nothing more that the migration would not see
        take_leadership(connection)
    command.upgrade(config, "head")
    if not has_leader:
        take_leadership(connection)


def _config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def _require_known(connection: Connection, scripts: ScriptDirectory) -> None:
    current = MigrationContext.configure(connection).get_current_revision()
    known = {script.revision for script in scripts.walk_revisions()}
    if current is not None and current not in known:
        newest = scripts.get_current_head() or ""
        raise PlanariaError(
            ErrorReason.VERSION_MISMATCH,
            f"the database has schema {current}, which a newer version of Planaria wrote; this one "
            f"knows schemas up to {newest}: install the newer version, or use another database",
            {"expected": newest, "actual": current},
        )
