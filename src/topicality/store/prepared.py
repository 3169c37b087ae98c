"""Statements that are compiled once and then run on the database's own driver.

For each execution SQLAlchemy looks up the compiled form, builds a context and wraps the rows: several times what these small
statements take themselves. It still writes the SQL, opens the connections and ends the transactions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import ARRAY, BigInteger, Connection, Executable, any_, bindparam, column, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import psycopg
from sqlalchemy.dialects.sqlite import pysqlite

Values = Mapping[str, Any]
Found = tuple[Any, ...]


class Prepared:
    """One statement for all databases. Values go in by name, rows come back as tuples in the order of the columns.

    Args:
        statement: with a `bindparam` for each value; or what makes it, given SQLAlchemy's module of the database, where
            they differ.
    """

    def __init__(self, statement: Executable | Callable[[Any], Executable]) -> None:
        self._statement = statement
        self._compiled: dict[str, tuple[str, dict[str, Any]]] = {}

    def rows(self, connection: Connection, **values: Any) -> list[Found]:
        """Run it; all rows."""
        found: list[Found] = self._run(connection, values).fetchall()
        return found

    def row(self, connection: Connection, **values: Any) -> Found | None:
        """Run it; the first row, if there is one."""
        found: Found | None = self._run(connection, values).fetchone()
        return found

    def run(self, connection: Connection, values: Values) -> None:
        """Run one that gives no rows. Errors are the driver's own: see `connect.translated`."""
        self._run(connection, values)

    def many(self, connection: Connection, values: Iterable[Values]) -> None:
        """Run one that gives no rows, for each of these."""
        sql, fixed = self._sql(connection)
        rows: Sequence[Values] = [{**fixed, **row} for row in values] if fixed else list(values)
        if rows:
            connection.connection.cursor().executemany(sql, rows)

    def _run(self, connection: Connection, values: Values) -> Any:
        sql, fixed = self._sql(connection)
        return connection.connection.cursor().execute(sql, {**fixed, **values} if fixed else values)

    def _sql(self, connection: Connection) -> tuple[str, dict[str, Any]]:
        name = connection.dialect.name
        known = self._compiled.get(name)
        if known is None:
            made = self._statement
            if not isinstance(made, Executable):
                made = made(postgresql if name == "postgresql" else sqlite)
            compiled = made.compile(dialect=_dialect(name))  # type: ignore[attr-defined]  # all our executables compile
            fixed = {key: value for key, value in compiled.params.items() if value is not None}
            known = self._compiled[name] = (str(compiled), fixed)
        return known


def literally(connection: Connection, sql: str) -> None:
    """Run a statement without values or rows, such as a savepoint."""
    connection.connection.cursor().execute(sql)


def among(column: Any, name: str, dialect: Any) -> Any:
    """The condition that a column's value is one of a list, which is given as `listed` makes it."""
    if dialect is postgresql:
        return column == any_(bindparam(name, type_=ARRAY(column.type)))
    return column.in_(select(func.json_each(bindparam(name)).table_valued("value").c.value))


def each(dialect: Any, name: str) -> Any:
    """The whole numbers of a list, which is given as `listed` makes it, as a table with a column "value"."""
    if dialect is postgresql:
        given = func.unnest(bindparam(name, type_=ARRAY(BigInteger)))
        return given.table_valued(column("value", BigInteger)).render_derived()
    return func.json_each(bindparam(name)).table_valued(column("value", BigInteger))


def listed(connection: Connection, values: Sequence[int] | Sequence[str]) -> Any:
    """A list as the value of an `among`."""
    return list(values) if connection.dialect.name == "postgresql" else json.dumps(values)


@cache
def _dialect(name: str) -> Any:
    """Both spell values by name, so that one mapping serves them."""
    return psycopg.dialect() if name == "postgresql" else pysqlite.dialect(paramstyle="named")  # type: ignore[no-untyped-call]  # SQLAlchemy's
