"""Packed logs: one file packed with gzip, bzip2, xz or zstd, and archives (zip, tar) that hold a log.

They are unpacked into a temporary folder, up to a size limit. Skipped are paths that lead out of the archive's folder,
entries that are not regular files, and model weights.
"""

from __future__ import annotations

import contextlib
import gzip
import importlib
import os
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, BinaryIO, NamedTuple, Protocol

from rlvitals.errors import MissingDependency, NotALog
from rlvitals.importers.base import Notes, head_of, open_foreign

if TYPE_CHECKING:
    from bz2 import BZ2File
    from lzma import LZMAFile

MOST_BYTES = 2**30
"""The most bytes that a packed log may unpack to. The user has to unpack a larger one."""

MOST_FILES = 10_000
MOST_LAYERS = 3
"""A `.tar.gz` has two."""

READ_BYTES = 2**20
WEIGHTS = frozenset({".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".onnx", ".h5", ".npz", ".npy", ".pkl"})

_ZIP, _TAR, _TAR_AT = b"PK\x03\x04", b"ustar", 257
_DAMAGE: tuple[type[Exception], ...] = (EOFError, OSError, ValueError, zlib.error)
_ARCHIVE_DAMAGE: tuple[type[Exception], ...] = (
    *_DAMAGE,
    zipfile.BadZipFile,
    tarfile.TarError,
    NotImplementedError,
    RuntimeError,
)


class PackedStream(Protocol):
    """Unpacked bytes, read in pieces."""

    def read(self, size: int, /) -> bytes: ...
    def close(self) -> None: ...


class Packing(NamedTuple):
    """A compression format of single files."""

    mark: bytes
    endings: tuple[str, ...]
    archive: str
    """The combined ending of a tar in this format."""


GZIP = Packing(b"\x1f\x8b", (".gz", ".gzip"), ".tgz")
BZIP2 = Packing(b"BZh", (".bz2",), ".tbz2")
XZ = Packing(b"\xfd7zXZ\x00", (".xz",), ".txz")
ZSTD = Packing(b"\x28\xb5\x2f\xfd", (".zst", ".zstd"), ".tzst")
PACKINGS = (GZIP, BZIP2, XZ, ZSTD)


def is_packed(head: bytes) -> bool:
    """Whether a file that begins with these bytes must be unpacked first."""
    return _packing_of(head) is not None or _is_archive(head)


@contextlib.contextmanager
def unpacked(path: Path, notes: Notes) -> Iterator[Path]:
    """The unpacked file, or the folder of an archive's files. Raises NotALog if it cannot be unpacked."""
    with tempfile.TemporaryDirectory(prefix="rlvitals-") as folder:
        place, budget = path, _Budget(path)
        for layer in range(MOST_LAYERS):
            head = head_of(place) if os.path.isfile(place) else b""
            packing = _packing_of(head)
            if packing is None and not _is_archive(head):
                break
            below = Path(folder, str(layer))
            below.mkdir()
            if packing is not None:
                place = _unpack(place, below, packing, budget, notes)
            else:
                place = _extract(place, below, budget, notes)
        yield place


class _Budget:
    """The bytes that may still be unpacked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.left = MOST_BYTES

    def copy(self, source: PackedStream, target: Path) -> str:
        """Write a stream to a file, within the budget. Returns the reason if the stream is damaged, otherwise an empty
        text.
        """
        damage = _DAMAGE + _damage_of_packages()
        with open(target, "wb") as out:
            while True:
                try:
                    data = source.read(READ_BYTES)
                except damage as error:
                    return str(error) or type(error).__name__
                if not data:
                    return ""
                self.left -= len(data)
                if self.left < 0:
                    raise NotALog(
                        self.path,
                        f"it unpacks to more than {MOST_BYTES // 2**20:,} MiB, the most that is unpacked here. Unpack "
                        "it yourself and pass the log inside",
                    )
                out.write(data)


def _packing_of(head: bytes) -> Packing | None:
    return next((packing for packing in PACKINGS if head.startswith(packing.mark)), None)


def _is_archive(head: bytes) -> bool:
    return head.startswith(_ZIP) or head[_TAR_AT : _TAR_AT + len(_TAR)] == _TAR


def _unpack(path: Path, folder: Path, packing: Packing, budget: _Budget, notes: Notes) -> Path:
    """Unpack a file under its original name, because importers may look at the name."""
    name = path.name
    for ending in (*packing.endings, packing.archive):
        name = name.removesuffix(ending)
    target = folder / (name or "log")
    with open_foreign(path) as file, contextlib.closing(_stream(path, file, packing)) as stream:
        damage = budget.copy(stream, target)
    if damage:
        notes.say(f"the packed file is cut or damaged, what follows is missing ({damage})")
    return target


class _Pieces:
    """Reads a standard-library stream with `read1`, so that no data before a damaged place is lost."""

    def __init__(self, stream: gzip.GzipFile | BZ2File | LZMAFile) -> None:
        self._stream = stream
        self.close = stream.close

    def read(self, size: int, /) -> bytes:
        return self._stream.read1(size)


def _stream(path: Path, file: BinaryIO, packing: Packing) -> PackedStream:
    """A stream over all compressed parts of a file. A logger that appends writes several."""
    if packing is GZIP:
        return _Pieces(gzip.GzipFile(fileobj=file))
    if packing is ZSTD:
        return zstd_stream(file)
    try:  # Python may be built without them
        from bz2 import BZ2File
        from lzma import LZMAFile
    except ImportError as error:
        raise NotALog(
            path, f"it is packed in a way that this Python cannot unpack ({error}). Unpack it first"
        ) from error
    return _Pieces(BZ2File(file) if packing is BZIP2 else LZMAFile(file))


def zstd_stream(file: BinaryIO) -> PackedStream:
    """A zstd stream, from Python's own module (since 3.14) or an installed package."""
    stream: PackedStream
    with contextlib.suppress(ImportError):
        stream = importlib.import_module("compression.zstd").ZstdFile(file)
        return stream
    with contextlib.suppress(ImportError):
        zstandard = importlib.import_module("zstandard")
        stream = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        return stream
    with contextlib.suppress(ImportError):
        stream = importlib.import_module("pyarrow").CompressedInputStream(file, "zstd")
        return stream
    raise MissingDependency("Reading .zst files", package="zstandard")


def _damage_of_packages() -> tuple[type[Exception], ...]:
    """The error types of the compression modules that are loaded."""
    kinds = [
        getattr(sys.modules.get(module), name, None)
        for module, name in (
            ("lzma", "LZMAError"),
            ("compression.zstd", "ZstdError"),
            ("zstandard", "ZstdError"),
            ("pyarrow", "ArrowException"),
        )
    ]
    return tuple(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Exception))


def _extract(path: Path, folder: Path, budget: _Budget, notes: Notes) -> Path:
    """Extract the regular files of an archive into their folders."""
    left_out = 0
    try:
        for number, (name, stream) in enumerate(_members(path)):
            if number >= MOST_FILES:
                raise NotALog(budget.path, f"the archive holds more than {MOST_FILES:,} files")
            with contextlib.closing(stream):
                target = _target(name, folder)
                damage = "" if target is None else budget.copy(stream, target)
            left_out += target is None
            if damage:
                notes.say(f"{name} in the archive is cut or damaged, what follows is missing ({damage})")
    except _ARCHIVE_DAMAGE as error:
        notes.say(f"the archive is cut or damaged, what follows is missing ({error})")
    notes.count("1 file of the archive was left out", "{} files of the archive were left out", left_out)
    return folder


def _members(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """The regular files of an archive, each open until the next is requested."""
    with open_foreign(path) as file:
        if head_of(path).startswith(_ZIP):
            with zipfile.ZipFile(file) as archive:
                for entry in archive.infolist():
                    if not entry.is_dir():
                        yield entry.filename, archive.open(entry)
            return
        with tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                content = tar.extractfile(member) if member.isfile() else None
                if content is not None:
                    yield member.name, content


def _target(name: str, folder: Path) -> Path | None:
    """Where to write a file of an archive; None for paths that lead out of the folder and for model weights."""
    parts = PurePosixPath(name.replace("\\", "/"))
    if parts.is_absolute() or ".." in parts.parts or ":" in name or parts.suffix.lower() in WEIGHTS:
        return None
    target = folder.joinpath(*parts.parts)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError:  # a file has the name of a folder
        return None
    return None if os.path.isdir(target) else target
