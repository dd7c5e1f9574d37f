"""The etcd that a node was told to use, if any: made here, since only the node knows both its door and who uses it."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from random import Random

from hoard_p2p.cluster.agent import ClusterAgent
from hoard_p2p.cluster.discovery import Advert, Discovery, parse_discovery
from hoard_p2p.cluster.etcd import EtcdDiscovery
from hoard_p2p.errors import BadRequest
from hoard_p2p.node.names import Names
from hoard_p2p.node.naming import EtcdNaming, LocalNaming, Naming
from hoard_p2p.registry import RegistryAddress, parse_registry
from hoard_p2p.transfer.etcd import EtcdClient


def registry_of(texts: Sequence[str]) -> RegistryAddress | None:
    """The etcd among discoveries. Raises BadRequest for two of them: they could name different members."""
    found = [parse_registry(text) for text in texts if text.startswith("etcd:")]
    if len(found) > 1:
        raise BadRequest("two discoveries by etcd; write the members of one etcd as etcd:HOST:PORT,HOST:PORT")
    return found[0] if found else None


def make_naming(texts: Sequence[str], names: Names, executor: Executor, cluster: str) -> Naming:
    """Names are in etcd, if one is used. Raises BadRequest."""
    address = registry_of(texts)
    return (
        LocalNaming(names, executor)
        if address is None
        else EtcdNaming(names, executor, lambda: EtcdClient(address), cluster)
    )


def make_discoveries(
    texts: Sequence[str], advert: Advert, agent: Callable[[], ClusterAgent], random: Random
) -> list[Discovery]:
    """What `hoard up --discovery` names. `agent`: who is told of leases, asked for later. Raises BadRequest."""
    registry_of(texts)

    def by_etcd(address: RegistryAddress) -> Discovery:
        return EtcdDiscovery(
            address.name,
            lambda: EtcdClient(address),
            advert,
            lambda leased: agent().members_by_lease(leased),
            clock=time.monotonic,
            random=random,
        )

    return [parse_discovery(text, advert, by_etcd) for text in texts if text != "none"]
