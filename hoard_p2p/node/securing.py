"""From the settings of a node to how it talks to others."""

from pathlib import Path

from hoard_p2p.config import NodeSettings
from hoard_p2p.errors import BadRequest
from hoard_p2p.peer import NodeId
from hoard_p2p.transfer.keys import OPEN, KeyRing, Security, read_key_file
from hoard_p2p.transfer.tls import make_tls


def security_of(settings: NodeSettings, me: NodeId) -> Security:
    """Reads the key file, if there is one. Raises BadRequest, Refused."""
    if not settings.cluster_key_file:
        if settings.encrypt:
            raise BadRequest("--encrypt needs a key, from which its certificates are made; give --cluster-key-file too")
        return OPEN
    ring = KeyRing(me, read_key_file(Path(settings.cluster_key_file)))
    return Security(ring, make_tls(ring) if settings.encrypt else None)
