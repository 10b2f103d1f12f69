"""The first tables. A store that is made now gets all of today's tables at once (`env.py`)."""

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Nothing: a store that later steps are for has them."""
