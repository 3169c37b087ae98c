"""Runs the migrations on the connection, and in the transaction, that `connect.migrate` opened."""

from alembic import context

from topicality.store.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
