"""What Alembic runs: the connection comes from `planaria_coordinator.adapters.database.migrate`."""

from alembic import context

from planaria_coordinator.adapters.database.schema import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    # SQLite cannot alter most of a table: Alembic then copies it.
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
