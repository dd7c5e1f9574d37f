"""Discovery by multicast DNS: each node advertises `_hoard._tcp.local.` and browses for the others.

The instance name is the node id; the TXT record has `cluster`, `id`, `rack`, `port`, `wire`, and `key` where there is
one. Only nodes of the same cluster and key are reported. The only door to zeroconf.
"""

import asyncio
import ipaddress
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

import zeroconf
from zeroconf import DNSQuestionType, IPVersion, ServiceInfo, ServiceStateChange, Zeroconf
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from hoard_p2p.cluster import interfaces
from hoard_p2p.cluster.addresses import Address, Advert, Found
from hoard_p2p.errors import Unavailable
from hoard_p2p.peer import WIRE_VERSION, is_loopback, is_wildcard

log = logging.getLogger(__name__)

SERVICE = "_hoard._tcp.local."
WATCH_EVERY = 2.0
"""Seconds between two looks at the interfaces: one that comes up later is used from then on."""
LOOKUP_TIME = 3000
"""Milliseconds to wait for the record of an instance that was seen."""
MOST_NAMED = 256
"""Nodes with other keys that are named in the log, once each."""
REGISTER_TIME = 5.0
CLOSE_TIME = 1.5


def advertised(host: str, up: tuple[str, ...]) -> tuple[str, ...]:
    """The IPv4 addresses to advertise for a server that listens on `host`, when `up` are the addresses of this
    machine: for a wildcard all but loopback, loopback only if there is nothing else."""
    if not is_wildcard(host):
        return (host,)
    return tuple(address for address in up if not is_loopback(address)) or up[:1]


def spoken_on(host: str, up: tuple[str, ...]) -> tuple[str, ...]:
    """The interface addresses to speak mDNS on. Loopback is always one, so that nodes of one machine meet; a server
    that only listens there is of no use to others and is not shown to them."""
    if is_loopback(host):
        return tuple(address for address in up if is_loopback(address))
    return up


class Speaks(NamedTuple):
    """Where mDNS is spoken, and the addresses that are told, on one state of the interfaces."""

    up: tuple[str, ...]
    up6: tuple[interfaces.Address6, ...]
    on: tuple[str | int, ...]
    told: tuple[bytes, ...]

    @property
    def version(self) -> IPVersion:
        is_6 = {isinstance(interface, int) for interface in self.on}
        return IPVersion.All if len(is_6) == 2 else IPVersion.V6Only if True in is_6 else IPVersion.V4Only


def speaks(host: str, up: tuple[str, ...], up6: tuple[interfaces.Address6, ...]) -> Speaks:
    """How to be found, for a server that listens on `host`: by IPv4 unless it listens on an IPv6 address, by IPv6 only
    if it listens there. `::` and nothing listen on both."""
    on: list[str | int] = []
    told: list[bytes] = []
    if ":" not in host or is_wildcard(host):
        on += spoken_on(host, up)
        told += [socket.inet_aton(address) for address in advertised(host, up)]
    if ":" in host or not host:
        able = [each for each in up6 if is_wildcard(host) or each.host == host.partition("%")[0]]
        outside = [each for each in able if not is_loopback(each.host)] or able
        on += sorted({each.interface for each in outside})
        told += sorted({socket.inet_pton(socket.AF_INET6, each.host) for each in outside})
    return Speaks(up, up6, tuple(on), tuple(told))


class MdnsDiscovery:
    """Advertises one node and reports the others. Its interfaces are chosen again whenever they change."""

    name = "mdns"

    def __init__(self, advert: Advert) -> None:
        self._advert = advert
        self._strangers: set[str] = set()

    async def run(self, found: Found) -> None:
        """Until cancelled; says goodbye then, within about a second."""
        # zeroconf logs what it could not send or parse as warnings; nothing there is for our operator
        logging.getLogger("zeroconf").setLevel(logging.CRITICAL + 1)
        while True:
            now = speaks(self._advert.host, interfaces.up_addresses(), interfaces.up_addresses6())
            if now.on:
                await self._serve(now, found)
            else:
                await asyncio.sleep(WATCH_EVERY)

    async def _serve(self, now: Speaks, found: Found) -> None:
        """Advertise and browse on these interfaces until they change."""
        async with _zeroconf_on(now) as daemon:
            await self._register(daemon, now.told)
            async with asyncio.TaskGroup() as group:

                def changed(zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange) -> None:
                    if state_change is not ServiceStateChange.Removed:
                        group.create_task(self._look_up(zeroconf, name, found))

                # QM only: an answer by unicast reaches just one of the several nodes that share port 5353 here
                browser = AsyncServiceBrowser(
                    daemon.zeroconf, SERVICE, handlers=[changed], question_type=DNSQuestionType.QM
                )
                try:
                    await _change_of(now)
                finally:
                    await browser.async_cancel()
        log.info("network interfaces changed, mdns starts again")

    async def _register(self, daemon: AsyncZeroconf, addresses: tuple[bytes, ...]) -> None:
        advert, name = self._advert, self._advert.node_id.hex()
        info = AsyncServiceInfo(
            SERVICE,
            f"{name}.{SERVICE}",
            addresses=list(addresses),
            port=advert.port,
            properties={
                "cluster": advert.cluster,
                "id": name,
                "rack": advert.rack,
                "port": str(advert.port),
                "wire": str(WIRE_VERSION),
                **({"key": advert.keys[0]} if advert.keys[0] else {}),
            },
            server=f"{name}.local.",
        )
        try:
            async with asyncio.timeout(REGISTER_TIME):
                # a clone of this node may be there already: it gets another name here, and is told apart by hello
                await (await daemon.async_register_service(info, allow_name_change=True))
        except (zeroconf.Error, TimeoutError) as error:
            raise Unavailable(f"mdns cannot advertise this node: {error!r}") from error

    async def _look_up(self, daemon: Zeroconf, name: str, found: Found) -> None:
        """Report where the instance `name` listens, if it is of this cluster and not this node itself."""
        try:
            info = AsyncServiceInfo(SERVICE, name)
            known = await info.async_request(daemon, LOOKUP_TIME, question_type=DNSQuestionType.QM)
        except (zeroconf.Error, OSError, ValueError) as error:  # whatever a stranger put on the network
            log.debug("mdns: %s cannot be looked up: %r", name, error)
            return
        if known and is_stranger(info, self._advert):
            self._say_once(name)
        for address in reported(info, self._advert) if known else ():
            found(address)

    def _say_once(self, name: str) -> None:
        """That a node is left alone, which looks as if it should be one of us."""
        if name not in self._strangers and len(self._strangers) < MOST_NAMED:
            self._strangers.add(name)
            log.info(
                "node %s of this cluster signs with a key that this node lacks, or with none: left alone", name[:12]
            )


def is_stranger(info: ServiceInfo, advert: Advert) -> bool:
    """Whether this record is of a node of the same cluster name that signs with a key which the node of `advert` does
    not accept."""
    is_ours = info.properties.get(b"cluster") == advert.cluster.encode()
    return is_ours and (info.properties.get(b"key") or b"").decode("ascii", "replace") not in advert.keys


def reported(info: ServiceInfo, advert: Advert) -> list[Address]:
    """Where the node of this record may be reached; nowhere if it is of another cluster, or signs with a key that the
    node of `advert` does not accept."""
    if info.port is None or info.properties.get(b"cluster") != advert.cluster.encode():
        return []
    if is_stranger(info, advert):
        return []
    hosts = info.parsed_scoped_addresses(IPVersion.All)
    return [Address(host, info.port) for host in hosts if not _lacks_scope(host)]


def _lacks_scope(host: str) -> bool:
    """Whether it is a link-local IPv6 address of an interface that is not known: it can be reached nowhere."""
    address = ipaddress.ip_address(host)
    return address.version == 6 and address.is_link_local and "%" not in host


async def _change_of(was: Speaks) -> None:
    """Return when the addresses of this machine are others."""
    now = (was.up, was.up6)
    while now == (was.up, was.up6):
        await asyncio.sleep(WATCH_EVERY)
        with suppress(OSError):
            now = (interfaces.up_addresses(), interfaces.up_addresses6())


@asynccontextmanager
async def _zeroconf_on(now: Speaks) -> AsyncIterator[AsyncZeroconf]:
    """A zeroconf instance on these interfaces; withdrawn and closed in bounded time. Raises OSError, Unavailable."""
    try:
        daemon = AsyncZeroconf(interfaces=list(now.on), ip_version=now.version)
    except RuntimeError as error:  # an interface went away meanwhile, or has no multicast
        raise Unavailable(f"mdns cannot speak on the interfaces of this machine: {error}") from error
    try:
        yield daemon
    finally:
        try:
            async with asyncio.timeout(CLOSE_TIME):
                await daemon.async_unregister_all_services()
                await daemon.async_close()
        except (zeroconf.Error, OSError) as error:  # TimeoutError is one; the network may be gone
            log.debug("mdns: goodbye was not sent: %r", error)
