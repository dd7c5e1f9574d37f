"""Libraries that read training data, each in its usual way: a program of its own, for the interpreter that has them.

`ml_readers.py write DIRECTORY` writes with every library that is there; `ml_readers.py read DIRECTORY` reads, and
prints a line of JSON for each: [name, what it found], or [name, null] where the library is missing.
"""
# mypy: ignore-errors
# ruff: noqa: T201

import json
import os
import sys
from hashlib import sha256


def digest(data) -> str:
    return sha256(bytes(data)).hexdigest()[:16]


# --- writing


def write_numpy(top):
    import numpy as np

    rng = np.random.default_rng(1)
    np.save(f"{top}/array.npy", rng.random((1500, 900)))
    rng.integers(0, 255, 12 << 20, dtype=np.uint8).tofile(f"{top}/raw.bin")
    np.savez(f"{top}/arrays.npz", one=np.arange(1000), two=rng.random(5000))


def write_h5py(top):
    import h5py
    import numpy as np

    rng = np.random.default_rng(2)
    with h5py.File(f"{top}/data.h5", "w") as file:
        file.create_dataset("packed", data=rng.random((600, 300)), chunks=(50, 50), compression="gzip")
        file.create_dataset("plain", data=rng.random((1200, 1000)))
        file.create_group("inner").attrs["label"] = "cat"


def write_torch(top):
    import torch

    torch.save({"w": torch.arange(3_000_000, dtype=torch.float32), "b": torch.ones(7)}, f"{top}/model.pt")
    os.makedirs(f"{top}/samples")
    for number in range(64):
        with open(f"{top}/samples/{number:03d}", "wb") as file:
            file.write(bytes([number]) * (1000 + number))


def write_safetensors(top):
    import numpy as np
    from safetensors.numpy import save_file

    save_file({"w": np.arange(2_500_000, dtype=np.float32), "e": np.zeros(0, np.int8)}, f"{top}/model.safetensors")


def write_pyarrow(top):
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"a": list(range(50_000)), "s": [str(n) for n in range(50_000)]})
    pq.write_table(table, f"{top}/table.parquet", row_group_size=5000)
    with pa.OSFile(f"{top}/table.arrow", "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def write_zarr(top):
    import numpy as np
    import zarr

    array = zarr.open(f"{top}/array.zarr", mode="w", shape=(300, 300), chunks=(50, 50), dtype="f4")
    array[:] = np.random.default_rng(3).random((300, 300))


def write_lmdb(top):
    import lmdb

    with lmdb.open(f"{top}/data.lmdb", map_size=16 << 20) as database, database.begin(write=True) as transaction:
        for number in range(3000):
            transaction.put(b"%d" % number, b"value %d" % number * 20)


def write_webdataset(top):
    import webdataset

    with webdataset.TarWriter(f"{top}/shard-0000.tar") as shard:
        for number in range(200):
            shard.write({"__key__": f"{number:05d}", "bin": b"%d" % number * 200, "cls": str(number)})


# --- reading


def read_numpy(top):
    import numpy as np

    mapped = np.memmap(f"{top}/raw.bin", mode="r")
    order = np.random.default_rng(9).integers(0, len(mapped), 5000)
    whole = np.load(f"{top}/array.npy", mmap_mode="r")
    private = np.load(f"{top}/array.npy", mmap_mode="c")
    private[0] = 0
    packed = np.load(f"{top}/arrays.npz")
    return [
        digest(mapped[order].tobytes()), digest(mapped[-70_000:].tobytes()), float(whole[::7].sum()),
        float(private.sum()), float(packed["two"].sum()), digest(np.fromfile(f"{top}/raw.bin", np.uint8).tobytes()),
        error(lambda: np.load(f"{top}/array.npy", mmap_mode="r+")),
    ]  # fmt: skip


def read_h5py(top):
    """Locking is left as it is by default: the file is locked, and shared with other readers."""
    import h5py

    os.environ.pop("HDF5_USE_FILE_LOCKING", None)
    with h5py.File(f"{top}/data.h5", "r") as file, h5py.File(f"{top}/data.h5", "r") as again:
        return [
            float(file["packed"][10:400:3].sum()), float(again["plain"][::13, ::7].sum()), file["inner"].attrs["label"],
            sorted(file), float(file["plain"][1199].sum()), error(lambda: h5py.File(f"{top}/data.h5", "r+")),
        ]  # fmt: skip


def read_torch(top):
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Samples(Dataset):
        def __len__(self):
            return 64

        def __getitem__(self, number):
            with open(f"{top}/samples/{number:03d}", "rb") as file:
                return sum(file.read())

    mapped = torch.load(f"{top}/model.pt", mmap=True)
    plain = torch.load(f"{top}/model.pt", weights_only=True)
    loaded = DataLoader(Samples(), batch_size=8, num_workers=2, multiprocessing_context="fork")
    shared = torch.from_file(f"{top}/model.pt", shared=False, size=100, dtype=torch.uint8)
    return [
        float(mapped["w"].double().sum()), float(plain["w"][1000:2000].sum()), bool((mapped["w"] == plain["w"]).all()),
        sum(int(batch.sum()) for batch in loaded), int(shared.sum()),
    ]  # fmt: skip


def read_safetensors(top):
    from safetensors import safe_open

    with safe_open(f"{top}/model.safetensors", "np") as file:
        return [float(file.get_slice("w")[1000:2000].sum()), float(file.get_tensor("w").sum()), sorted(file.keys())]


def read_pyarrow(top):
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pa.memory_map(f"{top}/table.arrow", "r") as source:
        mapped = pa.ipc.open_file(source).read_all()
        found = [mapped["a"][31_234].as_py(), mapped.num_rows, mapped["s"][49_999].as_py()]
    part = pq.read_table(f"{top}/table.parquet", memory_map=True, filters=[("a", ">", 49_000)])
    return [*found, part.num_rows, pq.read_table(f"{top}/table.parquet").equals(mapped)]


def read_zarr(top):
    import zarr

    array = zarr.open(f"{top}/array.zarr", mode="r")
    return [float(array[33:222].sum()), list(array.shape)]


def read_lmdb(top):
    import lmdb

    with (
        lmdb.open(f"{top}/data.lmdb", readonly=True, lock=False, readahead=False) as database,
        database.begin() as read,
    ):
        return [digest(read.get(b"2345")), read.stat()["entries"], digest(b"".join(v for _, v in read.cursor()))]


def read_webdataset(top):
    import webdataset

    found = list(webdataset.WebDataset(f"{top}/shard-0000.tar", shardshuffle=False))
    return [len(found), sum(len(sample["bin"]) for sample in found), found[-1]["__key__"]]


def error(call) -> str:
    """The kind of error that a call must fail with."""
    try:
        call()
    except Exception as failed:  # noqa: BLE001  # whatever the library makes of it
        return type(failed).__name__
    return "no error"


LIBRARIES = ("numpy", "h5py", "torch", "safetensors", "pyarrow", "zarr", "lmdb", "webdataset")


def main(verb: str, top: str) -> None:
    for name in LIBRARIES:
        try:
            __import__(name)
        except ImportError:
            found = None
        else:
            found = globals()[f"{verb}_{name}"](top)
        if verb == "read":
            print(json.dumps([name, found]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
