"""Programs on a mounted snapshot do and say what they do and say on a local read-only disk."""

import hashlib
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.e2e.disks import Disks, answer, ran, two_disks, worked
from tests.system import IO_KINDS, make_tree, tree

pytestmark = [pytest.mark.root, pytest.mark.fuse, pytest.mark.timeout(180)]

MIB = 1 << 20
FIO_FILES = ("small-blocks", "large-blocks")
GIT = {
    "GIT_CONFIG_COUNT": "3", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*",
    "GIT_CONFIG_KEY_1": "user.email", "GIT_CONFIG_VALUE_1": "a@example.org",
    "GIT_CONFIG_KEY_2": "user.name", "GIT_CONFIG_VALUE_2": "a", "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_OPTIONAL_LOCKS": "0", "GIT_CONFIG_GLOBAL": os.devnull,
}  # fmt: skip
LIBRARY = "int answer(void) { return 42; }\nint puts(const char *text) { (void)text; return 0; }\n"
PROGRAM = '#include <stdio.h>\nint main(int count, char **words) { printf("%d %s\\n", count, words[1]); return 7; }\n'


def needs(*programs: str) -> None:
    """Skip the test unless these can be run."""
    if missing := [program for program in programs if shutil.which(program) is None]:
        pytest.skip(f"not installed: {', '.join(missing)}")


def _fill(source: Path) -> None:
    make_tree(source / "tree", files=120)
    (source / "large").write_bytes(random.Random(6).randbytes(9 * MIB))
    for part in (_fill_fio, _fill_git, _fill_sqlite, _fill_archives, _fill_code):
        part(source)


def _fill_fio(source: Path) -> None:
    (source / "fio").mkdir()
    if shutil.which("fio") is None:
        return
    for name, size in zip(FIO_FILES, ("4k", "64k"), strict=True):
        worked(
            "fio", "--name=lay", f"--filename={source / 'fio' / name}", "--size=9m", f"--bs={size}", "--rw=write",
            "--verify=crc32c", "--do_verify=0", "--ioengine=psync", "--verify_state_save=0", at=source,
        )  # fmt: skip


def _fill_git(source: Path) -> None:
    if shutil.which("git") is None:
        return
    repository = source / "git"
    worked("git", "init", "--quiet", "--initial-branch=main", repository, at=source, env=GIT)
    for number in range(3):
        for name in range(40):
            (repository / f"{name}.txt").write_text(f"{name} {number}\n" * 300)
        worked("git", "add", ".", at=repository, env=GIT)
        worked("git", "commit", "--quiet", "-m", f"change {number}", at=repository, env=GIT)
        if number == 1:
            worked("git", "gc", "--quiet", at=repository, env=GIT)


def _fill_sqlite(source: Path) -> None:
    (source / "sqlite").mkdir()
    for mode in ("delete", "wal"):
        with closing(sqlite3.connect(source / "sqlite" / f"{mode}.db")) as database:
            database.execute(f"pragma journal_mode={mode}")
            database.execute("create table things(number integer primary key, text)")
            database.executemany("insert into things values(?, ?)", ((n, f"thing {n}" * 5) for n in range(20_000)))
            database.execute("create index by_text on things(text)")
            database.commit()
            if mode == "wal":  # as it is while it is open: with its log and the index of that
                for ending in ("", "-wal", "-shm"):
                    shutil.copy(source / "sqlite" / f"wal.db{ending}", source / "sqlite" / f"open.db{ending}")


def _fill_archives(source: Path) -> None:
    (source / "archives").mkdir()
    contents = {f"{number}.bin": hashlib.sha256(b"%d" % number).digest() * (number * 7) for number in range(150)}
    with zipfile.ZipFile(source / "archives" / "all.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    with tarfile.open(source / "archives" / "all.tar", "w") as packed:
        packed.add(source / "tree" / "deep", "deep")


def _fill_code(source: Path) -> None:
    code = source / "code"
    (code / "package").mkdir(parents=True)
    (code / "package" / "__init__.py").write_text("from package.inner import value\n")
    (code / "package" / "inner.py").write_text("value = 42\n")
    (code / "script").write_text(f"#!{sys.executable}\nimport sys\nprint(sys.argv[1:])\n")
    (code / "script").chmod(0o755)
    (code / "data").write_text("not a program\n")
    compiler = shutil.which("cc")
    if compiler is not None:
        for name, text, options in (("library.so", LIBRARY, ["-shared", "-fPIC"]), ("program", PROGRAM, [])):
            subprocess.run([compiler, "-x", "c", "-", *options, "-o", code / name], input=text, text=True, check=True)


@pytest.fixture(scope="module", params=IO_KINDS)
def disks(request: pytest.FixtureRequest) -> Iterator[Disks]:
    with two_disks(_fill, request.param, large="large") as made:
        yield made


# --- fio

FIO_JOBS = """
[global]
allow_file_create=0
verify=crc32c
verify_fatal=1
verify_state_save=0
size=9m
"""


def _jobs(disk: Path, engine: str) -> str:
    """One job for each way to read; the blocks are those that were written, for their checksums are in them."""
    jobs = []
    for name, size in zip(FIO_FILES, ("4k", "64k"), strict=True):
        for order in ("read", "randread"):
            for direct in (0, 1) if engine != "mmap" else (0,):
                jobs.append(
                    f"[{engine}-{order}-{size}-{direct}]\nfilename={disk / 'fio' / name}\nbs={size}\nrw={order}\n"
                    f"ioengine={engine}\ndirect={direct}\niodepth={8 if engine in ('libaio', 'io_uring') else 1}\n"
                    f"numjobs={2 if order == 'randread' else 1}\n"
                )
    return FIO_JOBS + "\n".join(jobs)


def _can_fio(engine: str, scratch: Path) -> bool:
    probe = (
        "fio",
        "--name=probe",
        f"--ioengine={engine}",
        "--rw=write",
        "--size=4k",
        "--bs=4k",
        "--output-format=terse",
    )
    return ran(*probe, at=scratch)[0] == 0


@pytest.mark.parametrize("engine", ["psync", "mmap", "libaio", "io_uring"])
def test_fio_verifies_what_it_laid_out_on_disk(disks: Disks, engine: str) -> None:
    needs("fio")
    scratch = disks.fresh()
    if not _can_fio(engine, scratch):
        pytest.skip(f"fio cannot use {engine} here")
    jobs = scratch / "jobs"
    jobs.write_text(_jobs(disks.mount, engine))
    report = worked("fio", "--readonly", jobs, at=disks.mount, within=scratch)
    assert report.count("err= 0") == (12 if engine != "mmap" else 6), report


# --- git


def test_git_checks_shows_and_clones_a_repository(disks: Disks) -> None:
    needs("git")

    def looks(disk: Path) -> list[object]:
        inside = disk / "git"
        seen: list[object] = [
            ran("git", *words, at=inside, env=GIT)
            for words in (
                ["fsck", "--full", "--strict", "--no-progress"], ["log", "--stat", "--format=%H %s"],
                ["status", "--porcelain=v2", "--branch"], ["diff", "HEAD~1"], ["grep", "-c", "7 2"],
                ["cat-file", "--batch-all-objects", "--batch-check"],
            )
        ]  # fmt: skip
        for options in ([], ["--no-hardlinks"], ["--no-local"], ["--shared"]):
            clone = disks.fresh() / "clone"
            worked("git", "clone", "--quiet", *options, inside, clone, at=disk, env=GIT)
            seen.append(worked("git", "log", "-p", at=clone, env=GIT))
            seen.append(worked("git", "fsck", "--full", "--strict", "--no-progress", at=clone, env=GIT))
            seen.append(sorted(path.name for path in clone.iterdir()))
        seen.append(ran("git", "commit", "--allow-empty", "-m", "no", at=inside, env=GIT))
        seen.append(ran("git", "add", "--refresh", ".", at=inside, env=GIT))
        return seen

    seen = disks.same(looks)
    assert seen[0] == (0, "", "")
    assert "Read-only file system" in str(seen[-2])


# --- sqlite


def _asked(disk: Path, name: str, options: str) -> object:
    queries = (
        "pragma integrity_check", "select count(*), sum(number), sum(length(text)) from things",
        f"select number from things where text = '{'thing 777' * 5}'",
        "select text from things order by text desc limit 3", "pragma journal_mode", "delete from things",
    )  # fmt: skip
    answers: list[object] = []
    for query in queries:
        try:
            with closing(sqlite3.connect(f"file:{disk / 'sqlite' / name}?{options}", uri=True)) as database:
                answers.append(database.execute(query).fetchall())
        except sqlite3.Error as error:
            answers.append(str(error))
    return answers


@pytest.mark.parametrize("options", ["mode=ro", "immutable=1", "mode=rw", "mode=ro&nolock=1"])
def test_sqlite_answers_and_refuses_as_on_a_local_disk(disks: Disks, options: str) -> None:
    answers = disks.same(
        lambda disk: {name: _asked(disk, name, options) for name in ("delete.db", "wal.db", "open.db")}
    )
    assert str(answers["delete.db"]).startswith("[[('ok',)], [(20000, 199990000, ")


def test_a_database_is_shared_by_readers_that_lock_it(disks: Disks) -> None:
    uri = f"file:{disks.mount / 'sqlite' / 'delete.db'}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True)) as one, closing(sqlite3.connect(uri, uri=True)) as other:
        for database in (one, other):
            database.execute("begin")
            assert database.execute("select count(*) from things").fetchone() == (20_000,)


# --- archives and copies


def test_archives_are_read_at_random(disks: Disks) -> None:
    def looks(disk: Path) -> list[object]:
        with zipfile.ZipFile(disk / "archives" / "all.zip") as archive:
            assert archive.testzip() is None
            zipped = [hashlib.sha256(archive.read(name)).hexdigest() for name in reversed(archive.namelist())]
        with tarfile.open(disk / "archives" / "all.tar") as packed:
            members = [member for member in reversed(packed.getmembers()) if member.isfile()]
            unpacked = [hashlib.sha256((packed.extractfile(member) or b"").read()).hexdigest() for member in members]  # type: ignore[union-attr]  # files only
        return [zipped, unpacked]

    disks.same(looks)


def test_rsync_copies_everything_and_then_finds_nothing_to_do(disks: Disks) -> None:
    needs("rsync")
    copy, back = disks.fresh(), ("rsync", "-aHAX", "--checksum", "--dry-run", "--itemize-changes")
    worked("rsync", "-aHAX", "--checksum", f"{disks.mount}/tree/", f"{copy}/", at=disks.mount)
    assert worked(*back, f"{disks.mount}/tree/", f"{copy}/", at=disks.mount) == ""
    assert worked(*back, f"{disks.local}/tree/", f"{copy}/", at=disks.mount) == ""
    assert tree(copy) == tree(disks.local / "tree")


@pytest.mark.parametrize("sparse", ["auto", "always", "never"])
def test_cp_copies_everything(disks: Disks, sparse: str) -> None:
    def copies(disk: Path) -> list[object]:
        copy = disks.fresh() / "copy"
        worked("cp", "-a", f"--sparse={sparse}", disk / "tree", copy, at=disk)
        blocks = (copy / "sparse").stat().st_blocks
        return [tree(copy), blocks]

    found = disks.same(copies)
    assert found[0] == tree(disks.local / "tree")


def test_tar_makes_the_same_archive(disks: Disks) -> None:
    def packs(disk: Path) -> str:
        archive = disks.fresh() / "tar"
        same = ("--format=posix", "--pax-option=delete=atime,delete=ctime", "--sort=name", "--xattrs")
        worked("tar", "-c", *same, "-f", archive, "tree", "archives", at=disk)
        return hashlib.sha256(archive.read_bytes()).hexdigest()

    disks.same(packs)


def test_tar_carries_a_tree_with_its_holes_over_a_pipe(disks: Disks) -> None:
    copy = disks.fresh()
    worked("bash", "-c", f"tar -cS --xattrs tree | tar -xp --xattrs -C {copy}", at=disks.mount)
    assert tree(copy / "tree") == tree(disks.local / "tree")
    assert (copy / "tree" / "sparse").stat().st_blocks <= 65536 // 512


# --- looking around

SHELL = {
    "find newer": "find tree -newer tree/deep/0003.bin | sort",
    "find everything": "find . -printf '%P %s %m %n %y %l %T@\\n' | grep -v '^[^ ]* [0-9]* [0-9]* [0-9]* d' | sort",
    "find in parallel": "for i in 1 2 3 4 5 6; do (find tree | sort | sha256sum) & done; wait",
    "grep": "grep -rac thing sqlite tree | sort; grep -rlF $(printf '7 %s' 2) git/*.txt | sort",
    "sha256sum": "find tree/deep git archives sqlite code -type f -print0 | sort -z | xargs -0 sha256sum",
    "cmp": "cmp tree/shard tree/deep/again && cmp -n 100 tree/shard archives/all.zip",
    "closed pipe": "set -o pipefail; cat fio/* tree/shard tree/shard | head -c 100 | sha256sum; echo ${PIPESTATUS[0]}",
    "dd": "dd status=none if=tree/shard bs=1000 skip=777 count=5555 | md5sum",
    "direct dd": "dd status=none if=tree/shard iflag=direct bs=1M | md5sum",
    "tail": "tail -c 1000 tree/shard | md5sum; tail -c +12000000 tree/shard | md5sum; wc -c tree/shard",
    "du": "du --apparent-size -B1 tree/shard archives/* fio/*",
    "stat": "stat -c '%n %s %f %h %U %G %y' tree/g* tree/s* tree/deep/*.bin",
    "ls": "ls -lRn --time-style=full-iso tree git | grep -v '^total\\|^d'; ls -U tree/deep | sort | md5sum",
    "no writes": "touch new; touch tree/shard; mkdir new; rm -f tree/shard; mv tree new",
    "no links": "ln tree/shard x; ln -s a b; chmod 1 tree; chown 1 tree; rmdir tree/empty",
    "redirect": "echo x > tree/shard; echo x >> tree/shard; : > new; cp tree/shard tree/good; truncate -s 0 tree/shard",
    "edit": "sed -i s/a/b/ code/data 2>/dev/null; echo $?; sort -o code/data code/data; tee code/data < code/script",
}  # fmt: skip


@pytest.mark.parametrize("script", SHELL.values(), ids=SHELL)
def test_shell_commands_say_the_same(disks: Disks, script: str) -> None:
    disks.same(lambda disk: ran("bash", "-c", script, at=disk, env={"LC_ALL": "C"}))


# --- programs and libraries on the mount


def test_programs_scripts_and_libraries_run_from_the_mount(disks: Disks) -> None:
    needs("cc")
    load = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).answer())"

    def runs(disk: Path) -> list[object]:
        code = disk / "code"
        return [
            ran(code / "program", "word", at=disk),
            ran(code / "script", "a", "b", at=disk),
            ran("bash", "-c", "code/data", at=disk),
            ran(sys.executable, "-c", load, code / "library.so", at=disk),
            ran(
                sys.executable, "-c", "import os; os.write(1, b'x')", at=disk, env={"LD_PRELOAD": f"{code}/library.so"}
            ),
            ran("bash", "-c", "cd code && ./program '' && ldd ./program | wc -l", at=disk),
        ]

    program, script, data, loaded, preloaded, _ = disks.same(runs)
    assert program == (7, "2 word\n", "")
    assert script == (0, "['a', 'b']\n", "")
    assert "Permission denied" in str(data)
    assert (loaded, preloaded) == ((0, "42\n", ""), (0, "x", ""))


def test_python_imports_from_the_mount_and_quietly_writes_nothing(disks: Disks) -> None:
    script = "import package, sys; print(package.value, package.__cached__ is None, package.inner.__file__)"
    environment = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": ""}

    def imports(disk: Path) -> tuple[int, str, str]:
        return ran(sys.executable, "-c", script, at=disk, env={**environment, "PYTHONPATH": os.fspath(disk / "code")})

    assert disks.same(imports) == (0, "42 False DISK/code/package/inner.py\n", "")
    assert sorted(os.listdir(disks.mount / "code" / "package")) == ["__init__.py", "inner.py"]


# --- as the lower layer of a container's file system


@contextmanager
def _layered(lower: Path, scratch: Path) -> Iterator[Path]:
    upper, work, merged = (scratch / name for name in ("upper", "work", "merged"))
    for directory in (upper, work, merged):
        directory.mkdir()
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    done = subprocess.run(
        ["mount", "-t", "overlay", "overlay", "-o", options, merged], capture_output=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"overlayfs cannot be mounted here: {done.stderr.decode().strip()}")
    try:
        yield merged
    finally:
        subprocess.run(["umount", merged], check=True)


def test_an_overlay_reads_through_and_copies_up(disks: Disks) -> None:
    def changes(disk: Path) -> list[object]:
        with _layered(disk, disks.fresh()) as merged:
            with (merged / "tree" / "shard").open("r+b") as file:
                file.seek(5 * MIB)
                file.write(b"changed")
            (merged / "tree" / "deep" / "0000.bin").unlink()
            shutil.move(merged / "archives", merged / "moved")
            seen: list[object] = [hashlib.sha256((merged / "tree" / "shard").read_bytes()).hexdigest()]
            seen += [sorted(os.listdir(merged / each)) for each in ("", "moved", "tree/deep")]
            seen.append(answer(lambda: (merged / "tree" / "sparse").read_bytes().count(0)))
            return seen

    disks.same(changes)
    assert (disks.mount / "tree" / "shard").read_bytes() == (disks.local / "tree" / "shard").read_bytes()
