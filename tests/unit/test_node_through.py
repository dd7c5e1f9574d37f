"""A reader through the node, while the node hangs or is gone."""

import os
import socket
import threading
from pathlib import Path

import pytest

from hoard_p2p.errors import BadRequest, ChunkCorrupt, ChunkUnavailable, StoreFailed
from hoard_p2p.ids import chunk_id
from hoard_p2p.interfaces import Place
from hoard_p2p.node import framing
from hoard_p2p.node.descriptors import explained
from hoard_p2p.node.through import ThroughNode, elsewhere, pid_namespace
from tests.node_thread import node_in_thread

ID = chunk_id(b"some")
PLACE = Place(1, 0, 4, 1)


def operations(client: socket.socket, count: int) -> list[object]:
    """The next ones that arrived, answered as a node that has woken up."""
    found: list[object] = []
    for _ in range(count):
        message = framing.receive(client)
        assert message is not None
        found.append(message.body["op"])
        if message.body["op"] != "reads_through":
            framing.send(client, {"seq": message.body["seq"], "result": {"places": [[list(PLACE)]]}})
    return found


def test_nobody_waits_twice_for_a_node_that_hangs_and_it_is_asked_again_once_it_has_answered(tmp_path: Path) -> None:
    with framing.listen(tmp_path) as listener, ThroughNode(tmp_path, "a test") as reader:
        assert reader.place(ID) is None  # after the time that one call may take
        assert [reader.place(ID), reader.read_into(ID, 0, memoryview(bytearray(4)))] == [None, None]
        client, _ = listener.accept()
        with client:
            assert operations(client, 2) == ["reads_through", "chunk_places"]
            client.setblocking(False)
            with pytest.raises(BlockingIOError):  # the others were not sent
                framing.receive(client)
            client.setblocking(True)
            answering = threading.Thread(target=operations, args=(client, 1))
            answering.start()
            assert reader.place(ID) == PLACE
            answering.join(10)


def test_without_a_node_nothing_is_here_and_a_known_place_cannot_be_had_now(tmp_path: Path) -> None:
    with ThroughNode(tmp_path, "a test") as reader:
        assert reader.place(ID) is None
        assert reader.places([ID, ID]) == [None, None]
        assert reader.places_of(ID) == []
        assert reader.file_slab(b"k" * 16) is None
        with pytest.raises(ChunkUnavailable):
            reader.read_at(PLACE, 0, memoryview(bytearray(4)))
        with pytest.raises(StoreFailed):
            reader.open_slab(1)


def test_what_is_expected_is_read_as_it_is_and_may_be_damaged_or_missing(tmp_path: Path) -> None:
    datas = [os.urandom(9000) for _ in range(3)]
    with node_in_thread(tmp_path) as node:
        for data in datas:
            node.writer.put(chunk_id(data), data)
        node.writer.flush()
        with ThroughNode(tmp_path, "a test") as reader:
            reader.expect([(chunk_id(data), 5, 1000) for data in datas] + [(ID, 0, 4)])
            for data in datas:
                into = bytearray(1000)
                place = reader.read_into(chunk_id(data), 5, memoryview(into))
                assert place == node.reader.place(chunk_id(data))
                assert into == data[5:1005]
            for start in (*range(0, 9000, 100), 8950, 3, 4500):  # one who reads on, and one who jumps
                part = bytearray(min(100, 9000 - start))
                assert reader.read_into(chunk_id(datas[1]), start, memoryview(part)) is not None
                assert part == datas[1][start : start + 100]
            assert reader.read_into(ID, 0, memoryview(bytearray(4))) is None
            with pytest.raises(ValueError, match="of a chunk of 9000"):
                reader.read_into(chunk_id(datas[0]), 8990, memoryview(bytearray(11)))
            slab = node.reader.slab_path(place.slab) if place else Path()
            os.truncate(slab, 4096)
            with pytest.raises(ChunkCorrupt):
                reader.read_into(chunk_id(datas[2]), 0, memoryview(bytearray(9000)))


def test_readers_of_another_pid_namespace_are_told_by_its_number_or_else_by_the_nodes_pid() -> None:
    ours = pid_namespace()
    assert elsewhere({"pid": 7, "pidns": ours}, seen=7) == ""
    assert elsewhere({"pid": 7, "pidns": ours + 1}, seen=7) != ""
    assert elsewhere({"pid": 7, "pidns": 0}, seen=7) == ""
    assert elsewhere({"pid": 7, "pidns": 0}, seen=0) != ""
    assert elsewhere({"pid": 7}, seen=0) == "", "a node of an older version cannot be read through"


def test_what_a_machine_lacks_is_found_inside_a_group_of_errors() -> None:
    group = ExceptionGroup("tasks", [ExceptionGroup("inner", [OSError(24, "Too many open files")])])
    assert "no file descriptor is left" in str(explained(group, "publish"))
    assert "more memory" in str(explained(OSError(12, "Cannot allocate memory"), "publish"))
    assert explained(ExceptionGroup("tasks", [ValueError("a bug")]), "publish") is None


@pytest.mark.parametrize("place", [Place(1 << 32, 0, 4, 1), Place(-1, 0, 4, 1), Place(1, 1 << 63, 4, 1)])
def test_a_place_that_cannot_be_is_the_askers_fault(tmp_path: Path, place: Place) -> None:
    with node_in_thread(tmp_path), ThroughNode(tmp_path, "a test") as reader:
        with pytest.raises(ValueError, match="can be"):
            reader.read_at(place, 0, memoryview(bytearray(4)))
        with pytest.raises(BadRequest):
            reader.open_slab(1 << 32)
