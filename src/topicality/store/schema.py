"""The tables, as the newest migration leaves them. Owner and conversation reach every row through `conversation.key`."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

REVISION = "0002"  # the newest migration

metadata = MetaData()


def _words() -> Text:
    """Text compared by code point, so that order does not depend on the server's locale."""
    return Text().with_variant(Text(collation="C"), "postgresql")


def _key() -> BigInteger:
    """SQLite numbers only columns of this very type by itself."""
    return BigInteger().with_variant(Integer, "sqlite")


setting = Table(
    "setting",
    metadata,
    Column("name", String(40), primary_key=True),
    Column("value", Text, nullable=False),
)

conversation = Table(
    "conversation",
    metadata,
    Column("key", _key(), primary_key=True, autoincrement=True),  # never used again after an erase
    Column("owner", _words(), nullable=False),
    Column("name", _words(), nullable=False),
    Column("exchanges", Integer, nullable=False, server_default="0"),  # last sequence
    Column("topics", Integer, nullable=False, server_default="0"),  # last topic number
    Column("topics_version", Integer, nullable=False, server_default="0"),
    Column("changes", BigInteger, nullable=False, server_default="0"),  # last change number
    Column("numbers", BigInteger, nullable=False, server_default="0"),  # last number given to a live passage
    Column("passages", Integer, nullable=False, server_default="0"),  # live passages
    Column("words", BigInteger, nullable=False, server_default="0"),  # their terms
    Column("last_at", Float(53)),
    Column("posted", BigInteger, nullable=False, server_default="0"),  # up to this number, words are among the postings
    UniqueConstraint("owner", "name", name="uq_conversation_owner_name"),
    sqlite_autoincrement=True,
)

exchange = Table(
    "exchange",
    metadata,
    Column("conversation", BigInteger, primary_key=True, autoincrement=False),
    Column("sequence", Integer, primary_key=True, autoincrement=False),
    Column("id", _words(), nullable=False),
    Column("status", String(10), nullable=False),
    Column("user_text", Text, nullable=False),
    Column("user_at", Float(53)),
    Column("user_name", Text),
    Column("reply_text", Text),
    Column("reply_at", Float(53)),
    Column("reply_name", Text),
    Column("failure", Text),
    Column("begun_at", Float(53), nullable=False),
    Column("meta", Text, nullable=False),
    UniqueConstraint("conversation", "id", name="uq_exchange_id"),
    Index("ix_exchange_at", "conversation", "user_at"),
    Index(
        "ix_exchange_pending",
        "begun_at",
        sqlite_where=text("status = 'pending'"),
        postgresql_where=text("status = 'pending'"),
    ),
)

passage = Table(
    "passage",
    metadata,
    Column("conversation", BigInteger, primary_key=True, autoincrement=False),
    Column("sequence", Integer, primary_key=True, autoincrement=False),
    Column("side", SmallInteger, primary_key=True, autoincrement=False),  # 0 user, 1 assistant
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("number", BigInteger),  # 1, 2, 3 … in the order they became live; NULL while the exchange is pending
    Column("first", Integer, nullable=False),
    Column("last", Integer, nullable=False),
    Column("at", Float(53)),
    Column("terms", Text, nullable=False),
    Column("vector", LargeBinary),  # float32 scale, then one signed byte a component
    Index("ix_passage_number", "conversation", "number", unique=True),
)

posting = Table(
    "posting",
    metadata,
    Column("conversation", BigInteger, primary_key=True, autoincrement=False),
    Column("word", _words(), primary_key=True),
    Column("block", Integer, primary_key=True, autoincrement=False),  # passage number // 1024
    Column("frequency", Integer, nullable=False),
    Column("data", LargeBinary, nullable=False),  # see words.POSTING
    sqlite_with_rowid=False,
)

topic = Table(
    "topic",
    metadata,
    Column("conversation", BigInteger, primary_key=True, autoincrement=False),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("id", _words(), nullable=False),
    Column("status", String(12), nullable=False),
    Column("labels", Text, nullable=False),
    Column("terms", Text, nullable=False),
    Column("spans", Text, nullable=False),
    Column("started_at", Float(53)),
    Column("ended_at", Float(53)),
    Column("updated_at", Float(53), nullable=False),
    Column("meta", Text, nullable=False),
    UniqueConstraint("conversation", "id", name="uq_topic_id"),
)

state = Table(
    "state",
    metadata,
    Column("conversation", BigInteger, primary_key=True, autoincrement=False),
    Column("name", _words(), primary_key=True),
    Column("value", LargeBinary, nullable=False),
)

run = Table(
    "run",
    metadata,
    Column("key", _key(), primary_key=True, autoincrement=True),
    Column("conversation", BigInteger, nullable=False),
    Column("id", _words(), nullable=False),
    Column("created_at", Float(53), nullable=False),
    Column("status", Text, nullable=False),
    Column("data", Text, nullable=False),
    UniqueConstraint("conversation", "id", name="uq_run_id"),
    sqlite_autoincrement=True,
)

change = Table(
    "change",
    metadata,
    Column("conversation", BigInteger, primary_key=True, autoincrement=False),
    Column("id", _words(), primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("applied", Text, nullable=False),
    Index("ix_change_number", "conversation", "number"),
)

# Everything that hangs on a conversation's key, for erasing.
PARTS = (exchange, passage, posting, topic, state, run, change)
