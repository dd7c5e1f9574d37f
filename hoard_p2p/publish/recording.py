"""Entries of a listing, in any order, become records to sort, with the directories that they lie in."""

from hoard_p2p.objects import Kind, Listed
from hoard_p2p.printing import printable
from hoard_p2p.publish.exclude import Rules
from hoard_p2p.publish.listing import Unmappable, encode, implied_directory, mapped
from hoard_p2p.publish.spill import SortedRecords
from hoard_p2p.publish.unmapped import Unmapped

DIRECTORIES_IN_MEMORY = 50_000
"""Directories that are remembered to be in the records; the others are written once more, and merged."""


class Recording:
    """Takes entries. Used from one thread."""

    def __init__(self, rules: Rules, records: SortedRecords, unmapped: Unmapped, own_data: bytes = b"") -> None:
        """`own_data`: path of the node's data directory, if it is in the data set."""
        self._rules = rules
        self._records = records
        self._unmapped = unmapped
        self._excluded_directories: dict[bytes, bool] = {}
        self._written: set[bytes] = set()
        self.entries = 0
        self.bytes = 0
        self.excluded = 0
        self.special = Unmapped()
        self.own_data = Unmapped()
        self._own = own_data + b"/" if own_data else b""
        records.add(implied_directory(b""))

    def add(self, entry: Listed) -> None:
        """The next entry."""
        if not self._rules.empty and self._is_excluded(entry):
            self.excluded += 1
            return
        if self._own and (entry.path + b"/").startswith(self._own):
            if entry.kind is Kind.DIRECTORY and len(entry.path) < len(self._own):
                self.own_data.add(Unmappable(entry.path, "this node's own data"))
            return
        if entry.kind is Kind.SPECIAL:
            self.special.add(Unmappable(entry.path, printable(entry.target)))
            return
        outcome = mapped(entry)
        if isinstance(outcome, Unmappable):
            self._unmapped.add(outcome)
            return
        try:
            record = encode(outcome)
        except ValueError as error:
            self._unmapped.add(Unmappable(entry.path, f"has extended attributes that cannot be kept: {error}"))
            return
        self._records.add(record)
        self._write_parents(outcome.path)
        if outcome.kind is not Kind.DIRECTORY:
            self.entries += 1
            self.bytes += outcome.size

    def _write_parents(self, path: bytes) -> None:
        parent, slash, _ = path.rpartition(b"/")
        while slash and parent not in self._written:
            self._records.add(implied_directory(parent))
            if len(self._written) >= DIRECTORIES_IN_MEMORY:
                self._written.clear()
            self._written.add(parent)
            parent, slash, _ = parent.rpartition(b"/")

    def _is_excluded(self, entry: Listed) -> bool:
        path = entry.path
        if path.endswith(b"/"):
            return self._is_directory_excluded(path[:-1])
        if entry.kind is Kind.DIRECTORY:
            return self._is_directory_excluded(path)
        parent, _, name = path.rpartition(b"/")
        return self._is_directory_excluded(parent) or self._rules.leaves_out(path, name, is_directory=False)

    def _is_directory_excluded(self, path: bytes) -> bool:
        """Also if it lies in one that is."""
        known = self._excluded_directories.get(path)
        if known is not None:
            return known
        excluded = False
        parts = path.split(b"/") if path else []
        for count in range(1, len(parts) + 1):
            above = b"/".join(parts[:count])
            excluded = excluded or self._rules.leaves_out(above, parts[count - 1], is_directory=True)
        if len(self._excluded_directories) >= DIRECTORIES_IN_MEMORY:
            self._excluded_directories.clear()
        self._excluded_directories[path] = excluded
        return excluded
