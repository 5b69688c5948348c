"""Files that are whole or not there at all: write beside, flush, rename, flush the folder."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_all(descriptor: int, data: bytes) -> None:
    """Write every byte, however many system calls it takes.

    Raises: OSError: the disk is full or broken; a part may have been written
    """
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable: without it a rename may be undone by a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace(path: Path, data: bytes) -> int:
    """Put a file in place of another one in a single step.

    Returns: a descriptor of the new file, open for reading and writing, positioned at its end
    Raises:  OSError: there is either the former file or the new one, whole
    """
    beside = path.with_name(path.name + ".new")
    descriptor = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        write_all(descriptor, data)
        os.fsync(descriptor)
        beside.rename(path)
        sync_folder(path.parent)
    except BaseException:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise
    return descriptor
