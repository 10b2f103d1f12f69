"""Adjudications by managers."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "rulings",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("item_id", sa.Integer(), sa.ForeignKey("items.id"), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("user_id", sa.Integer(), sa.ForeignKey("users.id"), nullable=False),
        sa.Column("answer", sa.JSON(), nullable=False),
        sa.Column("sent", sa.String(length=64), nullable=False, unique=True),
        sa.Column("said", sa.String(length=32), nullable=False),
        sa.UniqueConstraint("item_id", "version"),
    )
