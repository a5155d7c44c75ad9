"""Alembic's scripts: each version of the schema and how to get there from the one before."""
