"""Atomic replacement of files: write a temporary file, flush it, rename it, flush the folder."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_all(descriptor: int, data: bytes) -> None:
    """Write every byte, in as many system calls as necessary.

    Raises: OSError: the disk is full or broken; a part of the data may have been written
    """
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable. Without this call a power cut may undo a rename."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace(path: Path, data: bytes) -> int:
    """Replace a file atomically.

    Returns: a descriptor of the new file, open for reading and writing, positioned at its end
    Raises:  OSError: the path has either the complete former file or the complete new one
    """
    temporary = path.with_name(path.name + ".new")
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        write_all(descriptor, data)
        os.fsync(descriptor)
        temporary.rename(path)
        sync_folder(path.parent)
    except BaseException:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    return descriptor
