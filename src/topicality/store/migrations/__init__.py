"""Alembic migrations, run when a store is opened. A released one is never changed."""
