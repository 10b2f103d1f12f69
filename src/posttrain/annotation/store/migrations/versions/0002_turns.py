"""Conversations: a row for each turn."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "turns",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("assignment_id", sa.Integer(), sa.ForeignKey("assignments.id"), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("sent", sa.String(length=64), nullable=False, unique=True),
        sa.Column("replies", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("shown", sa.JSON(), nullable=False),
        sa.Column("taken", sa.Integer(), nullable=True),
        sa.Column("said", sa.String(length=32), nullable=False),
        sa.Column("replied", sa.String(length=32), nullable=True),
        sa.UniqueConstraint("assignment_id", "number"),
    )
