"""Words are posted several passages at a time: up to which one they are is kept."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Until now all of them were."""
    op.add_column("conversation", sa.Column("posted", sa.BigInteger, nullable=False, server_default="0"))
    op.execute("UPDATE conversation SET posted = numbers")
