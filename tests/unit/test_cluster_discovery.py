"""Discovery: what the user may write, static lists, and which addresses mDNS tells."""

import asyncio
from pathlib import Path

import pytest
from zeroconf import ServiceInfo

from hoard_p2p.cluster import interfaces
from hoard_p2p.cluster.discovery import Address, Advert, parse_discovery
from hoard_p2p.cluster.mdns import SERVICE, MdnsDiscovery, advertised, reported, spoken_on
from hoard_p2p.cluster.static import StaticDiscovery, parse_list, read_address_file
from hoard_p2p.errors import BadRequest
from hoard_p2p.peer import NodeId
from hoard_p2p.registry import parse_registry

UNRESOLVABLE = "x" * 70
"""A label too long for any resolver, so that no server is asked."""
ADVERT = Advert(NodeId(bytes(16)), "c", "", "0.0.0.0", 7000)


async def first_found(text: str, count: int) -> set[Address]:
    """The first `count` distinct addresses that a discovery reports."""
    found: set[Address] = set()
    enough = asyncio.Event()

    def note(address: Address) -> None:
        found.add(address)
        if len(found) == count:
            enough.set()

    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        task = group.create_task(parse_discovery(text, ADVERT).run(note))
        await enough.wait()
        task.cancel()
    return found


def test_mdns_is_a_discovery() -> None:
    assert isinstance(parse_discovery("mdns", ADVERT), MdnsDiscovery)


def test_static_lists_report_each_address() -> None:
    found = asyncio.run(first_found("static:10.0.0.1:7000,10.0.0.2:7001, [fd00::1]:7002", 3))
    assert found == {Address("10.0.0.1", 7000), Address("10.0.0.2", 7001), Address("fd00::1", 7002)}


def test_a_static_list_may_be_a_node_list_of_slurm() -> None:
    assert parse_list("node[01-03,7]:7440, gpu[1-2]-r[8-9]:7440, [fd00::1]:7441") == [
        *(Address(f"node{number}", 7440) for number in ("01", "02", "03", "7")),
        *(Address(f"gpu{first}-r{second}", 7440) for first in (1, 2) for second in (8, 9)),
        Address("fd00::1", 7441),
    ]


@pytest.mark.parametrize("text", ["node[01-:7440", "node[a-b]:7440", "gpu1 gpu2:7440", "http://gpu1:7440", "gpu1"])
def test_what_is_no_host_is_refused_at_the_start(text: str) -> None:
    with pytest.raises(BadRequest, match=r"HOST:PORT|node list|cannot be in one"):
        parse_list(text)


def test_dns_reports_every_address_of_a_name() -> None:
    found = asyncio.run(first_found("dns:localhost:7000", 1))
    assert {address.host for address in found} <= {"127.0.0.1", "::1"}


def test_an_etcd_is_named_by_its_members_and_the_password_is_not_shown() -> None:
    address = parse_registry("etcd://me:a%40b@10.0.0.1,10.0.0.2:2380?ca=/etc/ca.pem")
    assert address.urls == ("http://10.0.0.1:2379", "http://10.0.0.2:2380")
    assert (address.user, address.password, address.ca) == ("me", "a@b", "/etc/ca.pem")
    assert address.name == "etcd:http://10.0.0.1:2379,http://10.0.0.2:2380"
    assert parse_registry("etcd:https://[fd00::1]:2379").urls == ("https://[fd00::1]:2379",)


def test_static_names_are_resolved() -> None:
    found = asyncio.run(first_found("static:localhost:7000", 1))
    assert {address.host for address in found} <= {"127.0.0.1", "::1"}


def test_a_static_file_has_one_address_a_line_and_comments(tmp_path: Path) -> None:
    path = tmp_path / "peers"
    path.write_text("# the rack\n10.0.0.1:7000\n\n  10.0.0.2:7000  \n")
    assert read_address_file(path) == [Address("10.0.0.1", 7000), Address("10.0.0.2", 7000)]
    assert len(asyncio.run(first_found(f"static:{path}", 2))) == 2


def test_a_static_file_that_is_missing_fails_when_run_and_not_when_parsed(tmp_path: Path) -> None:
    discovery = parse_discovery(f"static:{tmp_path / 'none'}", ADVERT)
    with pytest.raises(OSError, match="none"):
        asyncio.run(discovery.run(lambda address: None))


def test_none_finds_nothing_and_ends() -> None:
    found: list[Address] = []
    asyncio.run(parse_discovery("none", ADVERT).run(found.append))
    assert found == []


@pytest.mark.expect_warnings
def test_a_name_that_does_not_resolve_is_one_warning_and_hides_no_other(caplog: pytest.LogCaptureFixture) -> None:
    found = asyncio.run(first_found(f"static:{UNRESOLVABLE}:7000,10.0.0.1:7000", 1))
    assert found == {Address("10.0.0.1", 7000)}
    assert UNRESOLVABLE in caplog.text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "mdns:x",
        "static:",
        "static:host",
        "static::7000",
        "static:host:0",
        "static:h:99999",
        "magic",
        "dns:",
        "dns:h",
        "etcd:",
        "etcd:http://",
        "static:n[3-1]:7",
        "static:n[1-99999]:7",
        "etcd:h?x=1",
        "etcd:h:x",
    ],
)
def test_what_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        parse_discovery(text, ADVERT)


def test_loopback_is_among_the_addresses_of_this_machine() -> None:
    assert "127.0.0.1" in interfaces.up_addresses()


def test_a_wildcard_advertises_every_address_but_loopback() -> None:
    up = ("10.0.0.5", "127.0.0.1", "192.168.1.5")
    assert advertised("0.0.0.0", up) == ("10.0.0.5", "192.168.1.5")
    assert spoken_on("0.0.0.0", up) == up


def test_a_wildcard_advertises_loopback_if_there_is_nothing_else() -> None:
    assert advertised("0.0.0.0", ("127.0.0.1",)) == ("127.0.0.1",)


def test_one_address_is_advertised_as_it_is() -> None:
    assert advertised("10.0.0.5", ("10.0.0.5", "127.0.0.1")) == ("10.0.0.5",)


def test_a_loopback_server_is_told_on_loopback_only() -> None:
    up = ("10.0.0.5", "127.0.0.1")
    assert advertised("127.0.0.1", up) == ("127.0.0.1",)
    assert spoken_on("127.0.0.1", up) == ("127.0.0.1",)


def test_an_empty_static_source_is_none() -> None:
    asyncio.run(StaticDiscovery("none", list).run(lambda address: None))


def record(properties: dict[str, str], port: int | None = 7000) -> ServiceInfo:
    addresses = [bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2])]
    return ServiceInfo(SERVICE, f"n.{SERVICE}", port, properties=properties, addresses=addresses)


def advert(*keys: str) -> Advert:
    return Advert(NodeId(bytes(16)), "c", "", "10.0.0.9", 7000, keys or ("",))


def test_mdns_reports_every_address_of_a_node_of_this_cluster() -> None:
    assert reported(record({"cluster": "c"}), advert()) == [Address("10.0.0.1", 7000), Address("10.0.0.2", 7000)]


@pytest.mark.parametrize(
    "info",
    [record({"cluster": "d"}), record({}), record({"cluster": "c"}, None), record({"cluster": "c", "key": "aa"})],
)
def test_mdns_reports_no_node_of_another_cluster_with_a_key_or_without_a_port(info: ServiceInfo) -> None:
    assert reported(info, advert()) == []


def test_mdns_reports_nodes_that_sign_with_any_key_that_this_node_accepts() -> None:
    mine = advert("new", "old")
    assert reported(record({"cluster": "c", "key": "new"}), mine)
    assert reported(record({"cluster": "c", "key": "old"}), mine)
    assert reported(record({"cluster": "c", "key": "other"}), mine) == []
    assert reported(record({"cluster": "c"}), mine) == []
