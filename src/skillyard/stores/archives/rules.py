"""Why an archive is refused: every rule with what it stands for and what to do about it. docs/archives.md shows it."""

from __future__ import annotations

from typing import NamedTuple


class Rule(NamedTuple):
    refuses: str
    mend: str


_TOOLS = "make it anew with tar, zip, git archive or skillyard skill export"
_PORTABLE = "rename it: it must mean the same file on every system"

RULES: dict[str, Rule] = {
    "archive-format": Rule(
        "what is neither a zip, a tar nor a gzipped tar by its content; other compressions by name",
        "make a .zip or a .tar.gz",
    ),
    "archive-size": Rule("an archive of more bytes than one may have", "leave out what the skill does not need"),
    "archive-empty": Rule("an archive without a single file", "put SKILL.md and the skill's files into it"),
    "archive-truncated": Rule("an archive that ends before it is complete", "make or send it again"),
    "archive-damaged": Rule("wrong check sums, lengths that do not hold, compressed data that is none", _TOOLS),
    "archive-trailing": Rule("bytes before, between or after what the archive describes", _TOOLS),
    "archive-header": Rule("a header that does not follow the format, or says one thing in two ways", _TOOLS),
    "archive-extended": Rule("extended headers that are too large, doubled, or change how content is read", _TOOLS),
    "archive-mismatch": Rule("a zip whose directory and whose entries do not say the same", _TOOLS),
    "archive-overlap": Rule("zip entries that share bytes", _TOOLS),
    "archive-disks": Rule("one part of an archive in several parts", "make one archive of it"),
    "archive-zip64": Rule("the zip format for archives beyond 4 GiB or 65,535 entries", "make a plain zip"),
    "archive-encrypted": Rule("encrypted entries or directories", "make it without a password"),
    "archive-method": Rule("zip entries neither stored nor deflated", "use deflate, which every tool has"),
    "archive-entries": Rule("more entries than one archive may have", "leave out what the skill does not need"),
    "archive-files": Rule("more files than a skill may have", "leave out what the skill does not need"),
    "archive-bytes": Rule("more bytes, unpacked, than may come out", "leave out what the skill does not need"),
    "archive-ratio": Rule("content that unpacks to hundreds of times its size", "store such files uncompressed"),
    "archive-depth": Rule("directories nested deeper than a skill may have", "nest them less"),
    "archive-encoding": Rule("names that are no UTF-8", "rename it, or make the archive with UTF-8 names"),
    "archive-name": Rule("empty names, and names with control or other characters that do not print", "rename it"),
    "archive-name-length": Rule("names longer than 255 bytes, paths longer than 1,024", "use shorter names"),
    "archive-backslash": Rule("backslashes in names", "use / between directories"),
    "archive-absolute": Rule("absolute paths, drive letters", "make the archive from inside the directory"),
    "archive-traversal": Rule("paths that go up (..)", "make the archive from inside the directory"),
    "archive-reserved-name": Rule("names that Windows keeps for devices: CON, NUL, COM1 …", _PORTABLE),
    "archive-name-end": Rule("names that end in a dot or a space", _PORTABLE),
    "archive-duplicate": Rule("the same path twice, and a file where a directory of that name is", "keep one"),
    "archive-collision": Rule("names that differ only by case or by how Unicode spells them", _PORTABLE),
    "archive-link": Rule("symbolic and hard links", "put the file itself there (tar --dereference, zip without -y)"),
    "archive-special": Rule("devices, FIFOs, sparse files and unknown kinds of entries", "leave it out"),
}
