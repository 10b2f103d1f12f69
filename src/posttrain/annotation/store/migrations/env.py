"""Alembic's entry: run the steps in one transaction on the engine that is handed in."""

from alembic import context

from posttrain.annotation.store.tables import Base

with context.config.attributes["engine"].execution_options(begin="IMMEDIATE").begin() as connection:
    context.configure(connection=connection, target_metadata=Base.metadata, render_as_batch=True)
    context.run_migrations()
