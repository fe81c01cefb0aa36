"""What every Numba kernel shares: the two compile decorators and the cache of what they compiled."""

import hashlib
import pickle
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile, NullCache

from structmax.numerics import compilation
from structmax.numerics.kernel_numba.inner import InnerCompiler
from structmax.numerics.rows import over_rows as over_rows


@cache
def _digest(folder: Path) -> str:
    files = sorted(folder.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


class _Damaged(Exception):
    """A file of the cache is not what was written."""


class _Files(IndexDataCacheFile):
    """Names a file after the signature and the source of what it holds, where Numba keeps an index and counts.

    So processes that compile at once cannot take each other's, and there is no index to lose. A file begins with the
    digest of the rest: one that is damaged is not read. What an older source left behind is removed.
    """

    def _path(self, key: Any) -> Path:
        stem = self._index_name.removesuffix(".nbi")
        return Path(self._cache_path, f"{stem}.{_short(self._source_stamp)}.{_short((numba.__version__, key))}.nbc")

    def save(self, key: Any, data: Any) -> None:
        path = self._path(key)
        stem, stamp, _, _ = path.name.rsplit(".", 3)
        for other in path.parent.glob(f"{stem}.*.nbc"):
            if not other.name.startswith(f"{stem}.{stamp}."):
                other.unlink(missing_ok=True)
        dumped = self._dump(data)
        with self._open_for_write(str(path)) as file:
            file.write(hashlib.sha256(dumped).digest() + dumped)

    def load(self, key: Any) -> Any:
        """What was saved, or None if there is nothing."""
        try:
            content = self._path(key).read_bytes()
        except FileNotFoundError:
            return None
        digest, dumped = content[:32], content[32:]
        if digest != hashlib.sha256(dumped).digest():
            raise _Damaged(f"{self._path(key).name} is damaged")
        return pickle.loads(dumped)


def _short(what: Any) -> str:
    return hashlib.sha256(repr(what).encode()).hexdigest()[:16]


class _Cache(FunctionCache):
    """Compiled functions on disk. Where the disk is full or a file is damaged, there is a warning, and compilation."""

    def __init__(self, function: Callable) -> None:
        super().__init__(function)
        index = self._cache_file
        folders = Path(function.__code__.co_filename).parent, Path(__file__).parent
        stamp = (index._source_stamp, *map(_digest, folders))
        self._cache_file = _Files(index._cache_path, index._index_name.removesuffix(".nbi"), stamp)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        found = None
        try:
            found = super().load_overload(sig, target_context)
        except (OSError, _Damaged) as error:
            _warn_once(f"Compiled kernels cannot be read from {self._cache_path} and are compiled again: {error}.")
        if found is None:
            compilation.announce(self._py_func.__name__, f"it is kept in {self._cache_path}")
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except OSError as error:
            _warn_once(
                f"Compiled kernels cannot be kept in {self._cache_path}, and each process compiles its own: {error}. "
                "Try NUMBA_CACHE_DIR with a folder that can be written."
            )


class _NoCache(NullCache):
    """Where no folder can be written."""

    def __init__(self, function: Callable) -> None:
        self._name = function.__name__

    def load_overload(self, sig: Any, target_context: Any) -> None:
        _warn_once(
            "Neither the package's folder nor the user's cache folder can be written, so each process compiles its own "
            "kernels. Try NUMBA_CACHE_DIR with a folder that can be written."
        )
        compilation.announce(self._name, "it is not kept")


_warnings: list[str] = []


def _warn_once(text: str) -> None:
    """Of the first trouble with the cache: what follows most often has the same cause."""
    _warnings.append(text)
    if len(_warnings) == 1:
        warnings.warn(text, RuntimeWarning, stacklevel=2)


def compiled(*freedoms: str) -> Callable[[Callable], Any]:
    """A function that only compiled functions call: for each dtype it is lowered on first use, and becomes a part of
    the kernels that call it.

    `freedoms` are the LLVM fast-math flags the function may take: "contract" (fused multiply-add), "reassoc" (sums in
    any order, hence vectorised), "nnan" and "nsz" (together they let a maximum vectorise). Divisions by zero follow
    IEEE.

    Python must not call it: there is no way in, and the process would crash. What it calls is a `kernel`.
    """
    return numba.njit(**_settings(freedoms), no_cpython_wrapper=True, pipeline_class=InnerCompiler)


def kernel(*freedoms: str) -> Callable[[Callable], Any]:
    """Like `compiled`, for Python to call, most often by `over_rows`; it leaves the interpreter's lock.

    It is cached on disk. It may call compiled functions of its own folder and of this one, and no others: Numba renews
    a cached function only when its own file changes, so a digest of both folders is added to what it compares.
    """

    def compile_lazily(function: Callable) -> Any:
        dispatcher = numba.njit(function, **_settings(freedoms), nogil=True)
        try:
            dispatcher._cache = _Cache(function)
        except RuntimeError:
            dispatcher._cache = _NoCache(function)
        return dispatcher

    return compile_lazily


def _settings(freedoms: tuple[str, ...]) -> dict[str, Any]:
    return {"error_model": "numpy", "fastmath": set(freedoms), "no_cfunc_wrapper": True}
