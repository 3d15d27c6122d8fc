"""Tells kinds of files by their first bytes; finds disguises and text arranged to be missed."""

from __future__ import annotations

import re
from binascii import Error, a2b_base64

from skillyard.domain.review.file import File, Text
from skillyard.domain.review.notes import Notes, quoted
from skillyard.values import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of file.

    ``sort`` is ``program``, ``archive``, ``image``, ``document``, ``data``, ``script`` or ``text``."""

    name: str
    sort: str


_MAGIC: tuple[tuple[bytes, Kind], ...] = (
    (b"\x7fELF", Kind("an ELF program or library", "program")),
    (b"\xfe\xed\xfa\xce", Kind("a Mach-O program or library", "program")),
    (b"\xfe\xed\xfa\xcf", Kind("a Mach-O program or library", "program")),
    (b"\xce\xfa\xed\xfe", Kind("a Mach-O program or library", "program")),
    (b"\xcf\xfa\xed\xfe", Kind("a Mach-O program or library", "program")),
    (b"\xca\xfe\xba\xbe", Kind("a Mach-O program or Java class", "program")),
    (b"\0asm", Kind("a WebAssembly module", "program")),
    (b"BC\xc0\xde", Kind("LLVM bitcode", "program")),
    (b"dex\n", Kind("an Android program", "program")),
    (b"!<arch>\n", Kind("a library or Debian package", "archive")),
    (b"PK\x03\x04", Kind("a ZIP archive", "archive")),
    (b"PK\x05\x06", Kind("a ZIP archive", "archive")),
    (b"\x1f\x8b", Kind("a gzip archive", "archive")),
    (b"BZh", Kind("a bzip2 archive", "archive")),
    (b"\xfd7zXZ\0", Kind("an xz archive", "archive")),
    (b"\x28\xb5\x2f\xfd", Kind("a zstd archive", "archive")),
    (b"7z\xbc\xaf\x27\x1c", Kind("a 7z archive", "archive")),
    (b"Rar!\x1a\x07", Kind("a RAR archive", "archive")),
    (b"MSCF", Kind("a cabinet archive", "archive")),
    (b"\x89PNG\r\n\x1a\n", Kind("a PNG image", "image")),
    (b"\xff\xd8\xff", Kind("a JPEG image", "image")),
    (b"GIF87a", Kind("a GIF image", "image")),
    (b"GIF89a", Kind("a GIF image", "image")),
    (b"%PDF-", Kind("a PDF document", "document")),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", Kind("an OLE document, which may hold macros", "document")),
    (b"SQLite format 3\0", Kind("an SQLite database", "data")),
    (b"\x93NUMPY", Kind("a numpy array", "data")),
)
_PICKLE = Kind("a Python pickle, which runs code when it is loaded", "program")
_PYC = Kind("compiled Python", "program")
_PE = Kind("a Windows program or library", "program")
_TAR = Kind("a tar archive", "archive")
_WEBP = Kind("a WebP image", "image")

_PACKED_DOCUMENTS = frozenset(
    {".docx", ".xlsx", ".pptx", ".odt", ".ods", ".odp", ".epub", ".dotx", ".xltx", ".potx", ".npz"}
)
_EXPECTED: dict[str, str] = {
    **dict.fromkeys((".png", ".jpg", ".jpeg", ".gif", ".webp"), "image"),
    **dict.fromkeys((".pdf",), "document"),
    **dict.fromkeys((".zip", ".gz", ".tgz", ".bz2", ".xz", ".zst", ".7z", ".tar", ".rar", ".jar", ".whl"), "archive"),
    **dict.fromkeys(_PACKED_DOCUMENTS, "archive"),
}
_TEXTUAL = frozenset(
    {
        *(".md", ".txt", ".rst", ".py", ".pyi", ".toml", ".json", ".yaml", ".yml", ".csv", ".tsv", ".html", ".css"),
        *(".js", ".ts", ".mjs", ".cjs", ".jsx", ".tsx", ".sh", ".bash", ".ps1", ".bat", ".xml", ".svg", ".sql", ".ini"),
        *(".cfg", ".rb", ".pl", ".lua", ".go", ".rs", ".c", ".h", ".java", ".r", ".tex"),
    }
)
_PROGRAMS = frozenset(
    {".so", ".dylib", ".dll", ".exe", ".pyd", ".pyc", ".pyo", ".wasm", ".class", ".jar", ".com", ".msi", ".scr"}
)
_SHEBANG = re.compile(rb"#![ \t]*([^\r\n]{1,200})")


def kind_of(data: bytes) -> Kind | None:
    """Returns the kind by the first bytes; None for an unknown one."""
    for magic, kind in _MAGIC:
        if data.startswith(magic):
            return kind
    if data[:2] == b"MZ" and data[int.from_bytes(data[60:64], "little") :][:4] == b"PE\0\0":
        return _PE
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return _WEBP
    if data[257:262] == b"ustar":
        return _TAR
    if data[2:4] == b"\r\n" and 0x0B <= data[1] <= 0x0F and b"\0" in data[:16]:
        return _PYC
    if data[:1] == b"\x80" and data[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05") and data.endswith(b"."):
        return _PICKLE
    return None


def check_kind(file: File, notes: Notes) -> None:
    kind = kind_of(file.data)
    shebang = _SHEBANG.match(file.data)
    _disguise(file, kind, scripted=shebang is not None, notes=notes)
    if kind is not None and kind.sort == "program":
        notes.danger(file.path, 0, "program", f"is {kind.name}: nobody can read what it does")
    elif kind is not None and kind.sort == "archive" and file.suffix not in _PACKED_DOCUMENTS:
        notes.warn(file.path, 0, "archive", f"is {kind.name}: what is in it was not looked at")
    elif file.suffix in _PROGRAMS:
        notes.warn(file.path, 0, "program", f"is named like a program ({file.suffix})")
    elif kind is None and not file.encoding:
        notes.note(file.path, 0, "binary", f"holds {len(file.data)} bytes that are no text and of no known kind")
    if shebang:
        notes.note(file.path, 1, "script", f"is a script for {quoted(shebang[1].decode('latin-1'))}")
    elif file.executable and kind is None:
        notes.note(file.path, 0, "script", "is executable, and does not say by what")
    if file.encoding in ("utf-16", "latin-1") and file.suffix in _TEXTUAL:
        notes.warn(file.path, 0, "odd-encoding", "is not UTF-8: programs may read something else than you")


def _disguise(file: File, kind: Kind | None, *, scripted: bool, notes: Notes) -> None:
    """Finds a name that promises another content."""
    what = kind.name if kind else "a script" if scripted else "text" if file.encoding else "something else"
    sort = kind.sort if kind else "script" if scripted else "text" if file.encoding else "unknown"
    expected = _EXPECTED.get(file.suffix)
    if not file.data:
        return
    if file.suffix in _TEXTUAL and sort not in ("text", "script"):
        notes.danger(file.path, 0, "disguise", f"is named like text ({file.suffix}) and is {what}")
    elif expected and sort != expected:
        grave = sort in ("program", "archive", "script")
        message = f"is named like {_article(expected)} ({file.suffix}) and is {what}"
        notes.add("danger" if grave else "warning", file.path, 0, "disguise", message)
    elif kind and kind.sort in ("image", "document") and b"PK\x05\x06" in file.data[-66_000:]:
        notes.danger(file.path, 0, "disguise", f"is {kind.name} and a ZIP archive as well")


def _article(word: str) -> str:
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"


LONG_LINE = 2000
CODE = frozenset(
    {
        *(".py", ".pyi", ".js", ".mjs", ".cjs", ".ts", ".jsx", ".tsx", ".sh", ".bash", ".zsh", ".ps1", ".bat"),
        *(".rb", ".pl", ".lua", ".php", ".go", ".rs", ".c", ".h", ".cpp", ".java", ".r", ".jl", ".swift", ".kt"),
        *(".sql", ".md"),
    }
)
_BASE64 = re.compile(r"(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{200,}={0,2}")
_HEX = re.compile(r"(?:\\x[0-9a-fA-F]{2}){60,}|\b[0-9a-fA-F]{400,}\b")
_FAR_RIGHT = re.compile(r"(?<![ \t])[ \t]{160,}(?=\S)")
_FAR_BELOW = re.compile(r"\n(?:[ \t\r]*\n){80,}(?=[ \t\r]*[^ \t\r\n])")


def check_layout(file: File, text: Text, notes: Notes) -> None:
    _encoded(file, text, notes)
    if file.suffix not in CODE:
        return
    for number, line in text.numbered():
        if len(line) > LONG_LINE:
            level = "note" if file.suffix == ".md" else "warning"  # a paragraph in one line is usual there
            notes.add(level, file.path, number, "long-line", f"a line of {len(line)} characters, which nobody reads")
    for found in text.all(_FAR_RIGHT):
        message = f"text stands {len(found[0])} blanks to the right, where an editor does not show it"
        notes.danger(file.path, text.line_of(found.start()), "far-away", message)
    for found in _FAR_BELOW.finditer(text.rstrip(" \t\r\n")):
        notes.danger(file.path, text.line_of(found.end()), "far-away", "text stands below scores of empty lines")


def _encoded(file: File, text: Text, notes: Notes) -> None:
    for found in _BASE64.finditer(text):
        run = found[0]
        kind = kind_of(_decoded(run[:400]))
        if kind is None and _is_pattern(run[:200]):
            continue
        if text.endswith("base64,", max(0, found.start() - 60), found.start()) and (
            kind is None or kind.sort == "image"
        ):
            continue  # an image that is shown
        line = text.line_of(found.start())
        if kind is not None and kind.sort in ("program", "archive"):
            notes.danger(file.path, line, "encoded", f"{len(run)} characters of base64 that hold {kind.name}")
        else:
            notes.warn(file.path, line, "encoded", f"{len(run)} characters that look like base64")
    for found in text.all(_HEX):
        notes.warn(
            file.path, text.line_of(found.start()), "encoded", f"{len(found[0])} characters of hexadecimal bytes"
        )


def _is_pattern(run: str) -> bool:
    """Returns whether it is a rule of dashes or a long word, which carries no bytes."""
    return run.isalpha() or len(set(run)) < 16


def _decoded(run: str) -> bytes:
    plain = run.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return a2b_base64(plain[: len(plain) // 4 * 4])
    except Error:
        return b""
