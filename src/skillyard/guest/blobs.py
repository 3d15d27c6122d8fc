"""``runtime.blobs``: large data in and out of a run, beside its arguments and its result.

Reading is from the files that are mounted below ``/blobs``. Writing sends frames on the channel; the host stores
them under ids that it can foretell, so nothing has to be answered. The channel gives nothing back, so a run reads what
it wrote itself from copies.
"""

from __future__ import annotations

import io
import os
from _thread import allocate_lock

from .errors import BlobNotMounted, OutputNotSerializable
from .frames import PIECE, Channel
from .result import as_json, encoder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from io import FileIO
    from types import TracebackType
    from typing import Any

    from _typeshed import ReadableBuffer

KEPT_BYTES = 64 * 1024 * 1024
"""All copies together; what is larger is not kept, so that streaming a large blob costs no disk."""
MAX_BLOBS = 1000
MAX_BLOB_BYTES = 4 * 1024**3
MAX_OPEN = 32
TEXT = "text/plain"
JSON = "application/json"
BINARY = "application/octet-stream"
_NAME = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789!#$&^_.+-")
_LONGEST_NAME, _LONGEST_PARAMETERS = 126, 200
_header = encoder()


class OwnBlobs:
    """Files in a private temporary directory, made when the first is needed. A full disk costs the copy only."""

    def __init__(self) -> None:
        self._directory = ""
        self._left = KEPT_BYTES
        self._paths: dict[str, str | None] = {}

    def path(self, blob_id: str) -> str | None:
        """Returns the copy of a complete blob of this run; None where there is none."""
        return self._paths.get(blob_id)

    def wrote(self, blob_id: str) -> bool:
        return blob_id in self._paths

    def begin(self, blob_id: str) -> Copy:
        self._paths[blob_id] = None
        try:
            return Copy(blob_id, open(os.path.join(self._place(), blob_id.replace("/", "_")), "xb", buffering=0))
        except OSError:
            return Copy(blob_id, None)

    def _place(self) -> str:
        if not self._directory:
            directory = f"{os.environ.get('TMPDIR') or '/tmp'}/blobs-{os.urandom(8).hex()}"  # noqa: S108
            os.mkdir(directory, 0o700)
            self._directory = directory
        return self._directory

    def append(self, copy: Copy, data: memoryview) -> None:
        if copy.file is None:
            return
        copy.size += len(data)
        self._left -= len(data)
        try:
            if self._left < 0 or copy.file.write(data) != len(data):
                self.drop(copy)
        except OSError:
            self.drop(copy)

    def end(self, copy: Copy) -> None:
        if copy.file is not None:
            os.fchmod(copy.file.fileno(), 0o444)
            copy.file.close()
            self._paths[copy.blob_id] = os.fsdecode(copy.file.name)

    def drop(self, copy: Copy) -> None:
        self._paths[copy.blob_id] = None
        if copy.file is None:
            return
        copy.file.close()
        os.unlink(copy.file.name)
        copy.file = None
        self._left += copy.size


def _is_kind(text: str) -> bool:
    """Returns whether it is a MIME type, perhaps with parameters."""
    names, parameters, more = text.partition(";")
    main, slash, sub = names.partition("/")
    fits = bool(slash) and all(0 < len(name) <= _LONGEST_NAME and _NAME.issuperset(name) for name in (main, sub))
    return fits and (not parameters or (0 < len(more) <= _LONGEST_PARAMETERS and more.isascii() and more.isprintable()))


class Copy:
    """``file`` is None when nothing is kept; ``size`` is what it takes of KEPT_BYTES."""

    def __init__(self, blob_id: str, file: FileIO | None) -> None:
        self.blob_id = blob_id
        self.file = file
        self.size = 0


class Blobs:
    """Every ``write_*`` gives the id of the new blob. Safe to use from several threads."""

    BlobNotMounted = BlobNotMounted

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._mounted: Mapping[str, Mapping[str, Any]] = {}
        self._root = "/blobs"
        self._prefix = ""
        self._max_blobs = MAX_BLOBS
        self._left = MAX_BLOB_BYTES
        self._max_open = MAX_OPEN
        self._count = 0
        self._open: set[int] = set()
        self._own = OwnBlobs()
        self._lock = allocate_lock()

    def _mount(self, request: Mapping[str, Any]) -> None:
        self._mounted = request["blobs"]
        self._root = request.get("blob_root", self._root)
        self._prefix = request["blob_prefix"]
        self._max_blobs = request.get("max_blobs", MAX_BLOBS)
        self._left = request.get("max_blob_bytes", MAX_BLOB_BYTES)
        self._max_open = request.get("max_open_blobs", MAX_OPEN)

    def path(self, blob_id: str) -> str:
        """A read-only file that holds the blob. Raises BlobNotMounted."""
        if blob_id in self._mounted:
            return f"{self._root}/{blob_id}"
        if path := self._own.path(blob_id):
            return path
        raise BlobNotMounted(self._complaint(blob_id))

    def _complaint(self, blob_id: object) -> str:
        if not isinstance(blob_id, str):
            return f"a blob id is a str, not {type(blob_id).__name__}"
        if self._own.wrote(blob_id):
            return f"{blob_id!r} was written by this run, and is too large to be read back or not complete"
        names = ", ".join(sorted(self._mounted)[:10]) or "none"
        return f"blob {blob_id[:200]!r} is not mounted in this run; name it in input_blobs (mounted: {names})"

    def open(self, blob_id: str) -> io.BufferedReader:
        """A binary file for reading piece by piece. Raises BlobNotMounted."""
        return open(self.path(blob_id), "rb")

    def read_bytes(self, blob_id: str) -> bytes:
        with self.open(blob_id) as file:
            return file.read()

    def read_text(self, blob_id: str) -> str:
        """Raises UnicodeDecodeError for what is not UTF-8."""
        return self.read_bytes(blob_id).decode()

    def read_json(self, blob_id: str) -> Any:
        import json

        return json.loads(self.read_bytes(blob_id))

    def write_text(self, content: str, kind: str = TEXT) -> str:
        return self.write_bytes(str.encode(content), kind)

    def write_json(self, obj: object, kind: str = JSON) -> str:
        """Writes JSON, with the conversions of a result. Raises TypeError for a value that JSON does not have, NaN
        included, and ValueError for one that is too large."""
        try:
            data = as_json(obj, MAX_BLOB_BYTES, "obj")
        except OutputNotSerializable as error:
            raise TypeError(str(error)) from None
        return self.write_bytes(data, kind)

    def write_bytes(self, data: ReadableBuffer, kind: str = BINARY) -> str:
        with self.writer(kind) as writer:
            writer.write(data)
        return writer.blob_id

    def write_file(self, path: str | os.PathLike[str], kind: str = BINARY) -> str:
        """The bytes of a file, in constant memory."""
        with open(path, "rb") as file, self.writer(kind) as writer:
            while piece := file.read(PIECE):
                writer.write(piece)
        return writer.blob_id

    def writer(self, kind: str = BINARY) -> BlobWriter:
        """A binary file for writing a blob piece by piece, in constant memory. Use it in a ``with`` statement:
        the blob exists when that ends, and does not when an exception ends it."""
        if not isinstance(kind, str) or not _is_kind(kind):
            raise ValueError("kind: must be a MIME type such as text/csv")
        with self._lock:
            number = self._begin(kind)
        try:
            return BlobWriter(self, number, f"{self._prefix}{number}", self._own)
        except BaseException:
            self._abandon(number)
            raise

    def _begin_file(self, path: str) -> int:
        """Begins the blob of a file that the run left."""
        with self._lock:
            return self._begin(BINARY, path)

    def _begin(self, kind: str, path: str = "") -> int:
        if self._count >= self._max_blobs:
            raise RuntimeError(f"a run may write at most {self._max_blobs} blobs")
        if len(self._open) >= self._max_open:
            raise RuntimeError(f"a run may write at most {self._max_open} blobs at once; close some writers")
        self._count += 1
        number = self._count
        taken: list[int] = []
        try:
            self._open.add(number)
            header = {"n": number, "kind": kind, **({"path": path} if path else {})}
            self._channel.send(b"B", _header(header).encode(), taken=taken)
        except BaseException:  # a signal handler of foreign code
            self._open.discard(number)
            if taken:
                self._abandon(number)
            raise
        return number

    def _piece(self, number: int, data: memoryview) -> None:
        with self._lock:
            self._left -= len(data)
            if self._left < 0:
                raise RuntimeError("the blobs of this run are together larger than it may write")
        self._channel.send(b"D", number.to_bytes(4, "big"), data)

    def _end(self, number: int, size: int) -> None:
        self._open.discard(number)
        self._channel.send(b"E", _header({"n": number, "size": size}).encode())

    def _abandon(self, number: int) -> None:
        self._open.discard(number)
        self._channel.send(b"A", _header({"n": number}).encode())


class BlobWriter(io.BufferedIOBase):
    """``blob_id`` names the blob, which exists when the writer was closed. One that is not closed makes no blob,
    and neither does one whose ``write`` or ``close`` raised."""

    def __init__(self, blobs: Blobs, number: int, blob_id: str, own: OwnBlobs) -> None:
        self.blob_id = blob_id
        self._blobs = blobs
        self._number = number
        self._pending = bytearray()
        self._size = 0
        self._own = own
        self._copy = own.begin(blob_id)

    def __del__(self) -> None:
        """Does not close the file, as others do: it could happen in the middle of a frame."""

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size + len(self._pending)

    def write(self, data: ReadableBuffer) -> int:
        """Takes all of ``data``. Raises RuntimeError when the run's blobs become too large."""
        if self.closed:
            raise ValueError("the blob is complete or abandoned")
        view = memoryview(data)
        view = (view if view.c_contiguous else memoryview(view.tobytes())).cast("B")
        if len(self._pending) + len(view) < PIECE:
            self._pending += view
            return len(view)
        try:
            self._send_all(view)
        except BaseException:  # how much of it was sent is not known
            self.abandon()
            raise
        return len(view)

    def _send_all(self, view: memoryview) -> None:
        self._send_pending()
        whole = len(view) - len(view) % PIECE
        for start in range(0, whole, PIECE):
            self._send(view[start : start + PIECE])
        self._pending += view[whole:]

    def close(self) -> None:
        """Complete the blob."""
        if self.closed:
            return
        try:
            self._send_pending()
            self._own.end(self._copy)
        except BaseException:
            self.abandon()
            raise
        super().close()
        self._blobs._end(self._number, self._size)

    def abandon(self) -> None:
        """Gives the blob up."""
        if self.closed:
            return
        super().close()
        self._pending.clear()
        self._own.drop(self._copy)
        try:
            self._blobs._abandon(self._number)
        except (OSError, RuntimeError):  # nobody listens any more: what does not end does not exist either
            return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def _send_pending(self) -> None:
        if self._pending:
            pending, self._pending = self._pending, bytearray()
            self._send(memoryview(pending))

    def _send(self, piece: memoryview) -> None:
        self._size += len(piece)
        self._blobs._piece(self._number, piece)
        self._own.append(self._copy, piece)
