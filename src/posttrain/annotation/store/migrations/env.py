"""Alembic's entry: make the tables of a new store, or run the steps of an old one, in one transaction."""

from alembic import context
from sqlalchemy import inspect

from posttrain.annotation.store.tables import Base

with context.config.attributes["engine"].execution_options(begin="IMMEDIATE").begin() as connection:
    context.configure(connection=connection, target_metadata=Base.metadata, render_as_batch=True)
    if inspect(connection).has_table("alembic_version"):
        context.run_migrations()
    else:
        Base.metadata.create_all(connection, checkfirst=False)  # another program's tables are not taken for ours
        context.get_context().stamp(context.script, "head")
