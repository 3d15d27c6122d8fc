"""Reading and writing the small files by which the kernel shows and changes control groups."""

from __future__ import annotations

import os


def write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def words(path: str) -> list[str]:
    return read(path).split()


def counter(text: str, key: str) -> int:
    """The number behind ``key`` in lines of a key and a number."""
    words = text.split()
    return next((int(words[i + 1]) for i in range(0, len(words) - 1, 2) if words[i] == key), 0)
