"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def _words() -> sa.Text:
    return sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def _key() -> sa.BigInteger:
    return sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Create everything."""
    op.create_table(
        "setting",
        sa.Column("name", sa.String(40), primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )
    op.create_table(
        "conversation",
        sa.Column("key", _key(), primary_key=True, autoincrement=True),
        sa.Column("owner", _words(), nullable=False),
        sa.Column("name", _words(), nullable=False),
        sa.Column("exchanges", sa.Integer, nullable=False, server_default="0"),
        sa.Column("topics", sa.Integer, nullable=False, server_default="0"),
        sa.Column("topics_version", sa.Integer, nullable=False, server_default="0"),
        sa.Column("changes", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("numbers", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("passages", sa.Integer, nullable=False, server_default="0"),
        sa.Column("words", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("last_at", sa.Float(53)),
        sa.UniqueConstraint("owner", "name", name="uq_conversation_owner_name"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "exchange",
        sa.Column("conversation", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("id", _words(), nullable=False),
        sa.Column("status", sa.String(10), nullable=False),
        sa.Column("user_text", sa.Text, nullable=False),
        sa.Column("user_at", sa.Float(53)),
        sa.Column("user_name", sa.Text),
        sa.Column("reply_text", sa.Text),
        sa.Column("reply_at", sa.Float(53)),
        sa.Column("reply_name", sa.Text),
        sa.Column("failure", sa.Text),
        sa.Column("begun_at", sa.Float(53), nullable=False),
        sa.Column("meta", sa.Text, nullable=False),
        sa.UniqueConstraint("conversation", "id", name="uq_exchange_id"),
    )
    op.create_index("ix_exchange_at", "exchange", ["conversation", "user_at"])
    op.create_index(
        "ix_exchange_pending",
        "exchange",
        ["begun_at"],
        sqlite_where=sa.text("status = 'pending'"),
        postgresql_where=sa.text("status = 'pending'"),
    )
    op.create_table(
        "passage",
        sa.Column("conversation", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("side", sa.SmallInteger, primary_key=True, autoincrement=False),
        sa.Column("position", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("number", sa.BigInteger),
        sa.Column("first", sa.Integer, nullable=False),
        sa.Column("last", sa.Integer, nullable=False),
        sa.Column("at", sa.Float(53)),
        sa.Column("terms", sa.Text, nullable=False),
        sa.Column("vector", sa.LargeBinary),
    )
    op.create_index("ix_passage_number", "passage", ["conversation", "number"], unique=True)
    op.create_table(
        "posting",
        sa.Column("conversation", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("word", _words(), primary_key=True),
        sa.Column("block", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("frequency", sa.Integer, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "topic",
        sa.Column("conversation", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("id", _words(), nullable=False),
        sa.Column("status", sa.String(12), nullable=False),
        sa.Column("labels", sa.Text, nullable=False),
        sa.Column("terms", sa.Text, nullable=False),
        sa.Column("spans", sa.Text, nullable=False),
        sa.Column("started_at", sa.Float(53)),
        sa.Column("ended_at", sa.Float(53)),
        sa.Column("updated_at", sa.Float(53), nullable=False),
        sa.Column("meta", sa.Text, nullable=False),
        sa.UniqueConstraint("conversation", "id", name="uq_topic_id"),
    )
    op.create_table(
        "state",
        sa.Column("conversation", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("name", _words(), primary_key=True),
        sa.Column("value", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "run",
        sa.Column("key", _key(), primary_key=True, autoincrement=True),
        sa.Column("conversation", sa.BigInteger, nullable=False),
        sa.Column("id", _words(), nullable=False),
        sa.Column("created_at", sa.Float(53), nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("data", sa.Text, nullable=False),
        sa.UniqueConstraint("conversation", "id", name="uq_run_id"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "change",
        sa.Column("conversation", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("id", _words(), primary_key=True),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("applied", sa.Text, nullable=False),
    )
    op.create_index("ix_change_number", "change", ["conversation", "number"])
