"""Which invitations are for the first manager."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the column; of invitations that are there none is known to be one."""
    op.add_column("invites", sa.Column("bootstrap", sa.Boolean(), nullable=False, server_default=sa.false()))
