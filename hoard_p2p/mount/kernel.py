"""The kernel's side of the FUSE protocol, version 7: numbers and layouts, as far as a read-only file system needs them.

Source: `include/uapi/linux/fuse.h` of Linux 6.18 (protocol 7.45); each layout names its struct there. Everything is in
the machine's byte order, which is little-endian on every machine that Hoard runs on.
"""

from enum import IntEnum, IntFlag
from struct import Struct

MAJOR = 7
MINOR = 45
"""The newest protocol whose layouts are below; the kernel and we use the smaller minor of the two."""
OLDEST_MINOR = 31
"""Linux 5.4: opening files and directories without a request (no-open) and reads of 1 MiB came earlier than that."""

MAX_READ = 1 << 20
MAX_PAGES = MAX_READ // 4096
MAX_BACKGROUND = 65_535
"""With 64, sixty-four parked misses stop all hits; with this a thousand left hits at 79 us."""
FOREVER = 1 << 31
"""A validity in seconds that outlives every mount. The kernel clamps what its clock cannot count."""


class Op(IntEnum):
    """`enum fuse_opcode`."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    READLINK = 5
    SYMLINK = 6
    MKNOD = 8
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    LINK = 13
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    SETXATTR = 21
    GETXATTR = 22
    LISTXATTR = 23
    REMOVEXATTR = 24
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    FSYNCDIR = 30
    ACCESS = 34
    CREATE = 35
    INTERRUPT = 36
    DESTROY = 38
    IOCTL = 39
    BATCH_FORGET = 42
    FALLOCATE = 43
    READDIRPLUS = 44
    RENAME2 = 45
    LSEEK = 46
    COPY_FILE_RANGE = 47
    TMPFILE = 51


class Can(IntFlag):
    """INIT flags (`FUSE_*`); bits from 32 up travel in `flags2`."""

    ASYNC_READ = 1 << 0
    EXPORT_SUPPORT = 1 << 4
    DO_READDIRPLUS = 1 << 13
    READDIRPLUS_AUTO = 1 << 14
    NO_OPEN_SUPPORT = 1 << 17
    PARALLEL_DIROPS = 1 << 18
    MAX_PAGES = 1 << 22
    CACHE_SYMLINKS = 1 << 23
    NO_OPENDIR_SUPPORT = 1 << 24
    INIT_EXT = 1 << 30
    PASSTHROUGH = 1 << 37
    HAS_RESEND = 1 << 39


NO_OPEN = (
    Can.ASYNC_READ
    | Can.EXPORT_SUPPORT
    | Can.DO_READDIRPLUS
    | Can.NO_OPEN_SUPPORT
    | Can.PARALLEL_DIROPS
    | Can.MAX_PAGES
    | Can.CACHE_SYMLINKS
    | Can.NO_OPENDIR_SUPPORT
    | Can.INIT_EXT
    | Can.HAS_RESEND
)
"""What a no-open mount asks for. Not asked for: FUSE_AUTO_INVAL_DATA (our data never change), FUSE_POSIX_LOCKS and
FUSE_FLOCK_LOCKS (the kernel then keeps locks itself), FUSE_ASYNC_DIO (its O_DIRECT readers cannot be interrupted),
FUSE_READDIRPLUS_AUTO (it takes the first part of a folder's listing for all; `mount.operations` decides better)."""

PASSTHROUGH = NO_OPEN & ~Can.NO_OPEN_SUPPORT | Can.PASSTHROUGH
"""What a passthrough mount asks for: each OPEN is answered. Needs `MAX_STACK_DEPTH`, CAP_SYS_ADMIN, Linux 6.9."""

NEEDED = Can.NO_OPEN_SUPPORT | Can.NO_OPENDIR_SUPPORT | Can.MAX_PAGES

IN_HEADER = Struct("<IIQQIIIHH")
"""`fuse_in_header`: len, opcode, unique, nodeid, uid, gid, pid, total_extlen, padding."""
OUT_HEADER = Struct("<IiQ")
"""`fuse_out_header`: len, error (negative errno), unique; unique 0: a notification, error its code."""
INIT_IN = Struct("<IIIII")
"""`fuse_init_in`, its head: major, minor, max_readahead, flags, flags2 (the last if INIT_EXT is among the flags)."""
INIT_OUT = Struct("<IIIIHHIIHHII24x")
"""`fuse_init_out`: major, minor, max_readahead, flags, max_background, congestion_threshold, max_write, time_gran,
max_pages, map_alignment, flags2, max_stack_depth; the rest zero."""
_ATTR = "QQQqqqIIIIIIIIII"
"""`fuse_attr`: ino, size, blocks, atime, mtime, ctime (signed in fact), their nanoseconds, mode, nlink, uid, gid, rdev,
blksize, flags."""
ATTR_OUT = Struct("<QII" + _ATTR)
"""`fuse_attr_out`: attr_valid, attr_valid_nsec, dummy, attr."""
ENTRY_OUT = Struct("<QQQQII" + _ATTR)
"""`fuse_entry_out`: nodeid, generation, entry_valid, attr_valid, their nanoseconds, attr."""
DIRENT_HEAD = Struct("<QQII")
"""`fuse_dirent` before its name: ino, off, namelen, type. The whole entry is padded to 8 bytes."""
READ_IN = Struct("<QQI")
"""`fuse_read_in`, its head: fh, offset, size. Also of READDIR and READDIRPLUS."""
GETXATTR_IN = Struct("<II")
"""`fuse_getxattr_in`: size, padding; for GETXATTR the name follows. `fuse_getxattr_out` is the same."""
LSEEK_IN = Struct("<QQII")
"""`fuse_lseek_in`: fh, offset, whence, padding."""
LSEEK_OUT = Struct("<Q")
"""`fuse_lseek_out`: offset."""
OPEN_OUT = Struct("<QIi")
"""`fuse_open_out`: fh, open_flags, backing_id."""
RELEASE_IN = Struct("<QIIQ")
"""`fuse_release_in`: fh, flags, release_flags, lock_owner."""
BACKING_MAP = Struct("<iIQ")
"""`fuse_backing_map`: fd, flags, padding."""


class Fopen(IntFlag):
    """`FOPEN_*`: how the kernel is to treat an open file."""

    KEEP_CACHE = 1 << 1
    NOFLUSH = 1 << 5
    PASSTHROUGH = 1 << 7


INTERRUPT_IN = Struct("<Q")
"""`fuse_interrupt_in`: unique of the request whose reader got a signal."""
STATFS_OUT = Struct("<QQQQQIII28x")
"""`fuse_kstatfs`: blocks, bfree, bavail, files, ffree, bsize, namelen, frsize; padding and spare."""

NOTIFY_RESEND = 7
"""`FUSE_NOTIFY_RESEND`: have every request that was read and not answered sent again."""
RESEND = OUT_HEADER.pack(OUT_HEADER.size, NOTIFY_RESEND, 0)

DEV_CLONE = 0x8004_E500
"""`FUSE_DEV_IOC_CLONE`, that is _IOR(229, 0, uint32_t): join the connection of the descriptor in the argument."""

BACKING_OPEN = 0x4010_E501
"""`FUSE_DEV_IOC_BACKING_OPEN`, that is _IOW(229, 1, struct fuse_backing_map): the result is the backing id."""
BACKING_CLOSE = 0x4004_E502
"""`FUSE_DEV_IOC_BACKING_CLOSE`, that is _IOW(229, 2, uint32_t)."""
MAX_STACK_DEPTH = 1
"""In the INIT reply of a passthrough mount: backing files lie on a plain file system (not on overlayfs)."""

READ_BUFFER = 1 << 17
"""Bytes offered to each read of the device. The kernel insists on 8 KiB, and on max_write and a header."""
RESENT = 1 << 63
"""Set in the number of a request that is sent again (`FUSE_UNIQUE_RESEND`)."""
MAX_WRITE = 1 << 16
"""Never used, as nothing can be written; keeps the read buffer small."""
