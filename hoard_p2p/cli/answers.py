"""Typed access to what the node answers.

A missing field, or one of another type (a node of another version), reads as empty: a listing shows what it can.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hoard_p2p.config import Json


@dataclass(frozen=True, slots=True)
class Fields:
    """One JSON object of an answer."""

    body: Mapping[str, Json]

    def text(self, key: str) -> str:
        value = self.body.get(key)
        return value if isinstance(value, str) else ""

    def number(self, key: str) -> int:
        value = self.body.get(key)
        return int(value) if isinstance(value, int | float) else 0

    def number_or_none(self, key: str) -> int | None:
        value = self.body.get(key)
        return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    def flag(self, key: str) -> bool:
        return self.body.get(key) is True

    def texts(self, key: str) -> list[str]:
        value = self.body.get(key)
        return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []

    def fields(self, key: str) -> "Fields":
        value = self.body.get(key)
        return Fields(value if isinstance(value, dict) else {})

    def rows(self, key: str) -> Iterator["Fields"]:
        value = self.body.get(key)
        yield from (Fields(item) for item in (value if isinstance(value, list) else []) if isinstance(item, dict))
