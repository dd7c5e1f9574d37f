"""Residency is what a look at each segment's chunks gives, also where segments share chunks and have holes."""

from pathlib import Path
from random import Random

from tests.unit.node_cluster import run, running
from tests.unit.test_node_retention import published

MIB = 1 << 20


def test_it_agrees_with_a_look_at_every_chunk_whatever_repeats(tmp_path: Path) -> None:
    random = Random(4)
    pieces = [random.randbytes(MIB) for _ in range(12)]
    source = tmp_path / "a"
    source.mkdir()
    for number in range(24):
        (source / f"{number:02}").write_bytes(random.choice(pieces) if number % 2 else random.randbytes(700_000))
    with (source / "sparse").open("wb") as file:
        file.truncate(80 * MIB)
        file.seek(30 * MIB)
        file.write(random.choice(pieces))
    (source / "large").write_bytes(b"".join(random.choice(pieces) for _ in range(20)))

    async def main() -> None:
        async with running(tmp_path / "n") as one, running(tmp_path / "m", one) as two:
            snapshot = await published(one, source, replicas=1)
            for node in (one, two):
                catalog = (await node.open(snapshot)).catalog
                assert catalog.segments > 3
                told = await node.residency(snapshot)
                assert told is not None
                for segment in range(catalog.segments):
                    assert told.holds(segment) is node.held.whole(catalog, segment)

    run(main)
