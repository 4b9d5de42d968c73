"""Grants, and the rights of a caller that they add up to. Pure values, shared by brokers, clients and the CLI.

A grant names one operation on one resource, or on all resources of a kind whose names have a prefix:

    read topic:orders    write topic:orders.*    describe group:*    write transactional_id:billing    admin cluster

Everything that is not granted is denied. `admin` on the cluster allows everything. Internal topics, which have the
cluster's own records, may be described by every user, and everything else on them needs `admin` on the cluster.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, cast, get_args

from tinymq.base.errors import InvalidRequest
from tinymq.base.types import is_internal

Operation = Literal["read", "write", "create", "alter", "delete", "describe", "admin"]
Kind = Literal["topic", "group", "channel", "transactional_id", "producer_group", "cluster"]

OPERATIONS: tuple[str, ...] = get_args(Operation)
KINDS: tuple[str, ...] = get_args(Kind)
NAME_LENGTH_MAX = 249

_NAME = re.compile(r"[A-Za-z0-9._-]{0,249}")
_SHOWS = frozenset({"read", "write", "create", "alter", "delete"})  # each of them lets its holder describe, too


@dataclass(frozen=True, slots=True, order=True)
class Grant:
    """The permission for one operation."""

    operation: Operation
    kind: Kind
    name: str = ""  # of the resource, or the prefix of the names; "" for the cluster
    prefix: bool = False  # all resources of the kind whose names begin with `name`

    def __str__(self) -> str:
        if self.kind == "cluster":
            return f"{self.operation} cluster"
        return f"{self.operation} {self.kind}:{self.name}{'*' if self.prefix else ''}"

    @property
    def resource(self) -> str:
        """The text of the resource alone, as `parse_grant` takes it."""
        return str(self).partition(" ")[2]


ADMINISTRATOR = Grant("admin", "cluster")


def parse_grant(operation: str, resource: str) -> Grant:
    """Return the grant of an operation on "topic:NAME", "topic:PREFIX*" or "cluster". Raises InvalidRequest."""
    kind, colon, name = resource.partition(":")
    prefix = name.endswith("*")
    name = name.removesuffix("*")
    if operation not in OPERATIONS:
        raise InvalidRequest(f"{operation[:100]!r} is no operation", hint=f"one of {', '.join(OPERATIONS)}")
    if kind not in KINDS or bool(colon) == (kind == "cluster") or (kind != "cluster" and not (name or prefix)):
        kinds = ", ".join(f"{each}:NAME" for each in KINDS if each != "cluster")
        hint = f"write {kinds} or cluster; NAME* means every name that begins so"
        raise InvalidRequest(f"{resource[:300]!r} is no resource", hint=hint)
    if not _NAME.fullmatch(name):
        raise InvalidRequest(f"{name[:300]!r} is no name of a {kind}", hint="a * stands at the end, if anywhere")
    return Grant(cast(Operation, operation), cast(Kind, kind), name, prefix)


class Rights:
    """The rights that a set of grants adds up to. Immutable."""

    __slots__ = ("_exact", "_prefixes", "administers")

    def __init__(self, grants: Iterable[Grant]) -> None:
        exact: dict[tuple[str, str], set[str]] = {}
        prefixes: dict[str, dict[str, set[str]]] = {}
        for grant in grants:
            if grant.prefix:
                prefixes.setdefault(grant.kind, {}).setdefault(grant.name, set()).add(grant.operation)
            else:
                exact.setdefault((grant.kind, grant.name), set()).add(grant.operation)
        self.administers = "admin" in exact.get(("cluster", ""), ())
        self._exact = {where: frozenset(operations) for where, operations in exact.items()}
        self._prefixes = {
            kind: [(prefix, frozenset(operations)) for prefix, operations in sorted(by_prefix.items())]
            for kind, by_prefix in prefixes.items()
        }

    def allow(self, operation: str, kind: str, name: str = "") -> bool:
        """Is the operation allowed on this one resource?"""
        if self.administers:
            return True
        if kind == "topic" and is_internal(name):
            return operation == "describe"
        if _among(operation, self._exact.get((kind, name), _NOTHING)):
            return True
        return any(
            name.startswith(prefix) and _among(operation, operations)
            for prefix, operations in self._prefixes.get(kind, ())
        )

    def allow_all(self, operation: str, kind: str, prefix: str) -> bool:
        """Is the operation allowed on every resource of the kind whose name begins with `prefix`, internal ones not
        counted?"""
        return self.administers or any(
            prefix.startswith(granted) and _among(operation, operations)
            for granted, operations in self._prefixes.get(kind, ())
        )

    def allow_any(self, operation: str, kind: str) -> bool:
        """Is the operation allowed on at least one name of the kind, whether there is such a resource or not?"""
        if self.administers:
            return True
        exact = (operations for (of, _), operations in self._exact.items() if of == kind)
        prefixed = (operations for _, operations in self._prefixes.get(kind, ()))
        return any(_among(operation, operations) for some in (exact, prefixed) for operations in some)


_NOTHING: frozenset[str] = frozenset()


def _among(operation: str, granted: frozenset[str]) -> bool:
    if operation in granted or "admin" in granted:
        return True
    return operation == "describe" and not granted.isdisjoint(_SHOWS)
