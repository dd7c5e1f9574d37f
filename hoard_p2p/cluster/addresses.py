"""What every discovery speaks of: addresses found, the advert of this node, and the Protocol itself."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from hoard_p2p.peer import NodeId


class Address(NamedTuple):
    """Where a node may be listening. `host` is an IP literal without brackets."""

    host: str
    port: int


Found: TypeAlias = Callable[[Address], None]
"""Called on the event loop, any number of times for one address."""


@dataclass(frozen=True, slots=True)
class Advert:
    """What a node tells about itself where discovery can tell. `host` is what the server listens on, wildcards
    included; `port` is the bound port; `keys` are the fingerprints of the keys that it accepts, the one that it signs
    with first, or one empty text in open mode."""

    node_id: NodeId
    cluster: str
    rack: str
    host: str
    port: int
    keys: tuple[str, ...] = ("",)


class Discovery(Protocol):
    """One source of addresses."""

    @property
    def name(self) -> str:
        """As the user wrote it, for messages."""
        ...

    async def run(self, found: Found) -> None:
        """Report addresses until cancelled; a source that has nothing more to say may return. Raises OSError or a
        HoardError when it cannot work now; the caller warns and starts it again later. Cleans up when cancelled."""
        ...
