"""Files that a merge leaves out because the profiler, not the job, wrote them."""

from __future__ import annotations

from collections.abc import Collection, Iterable


def is_export(path: str, exports: Collection[str]) -> bool:
    """Whether the profiler wrote the file, or a temporary form of it that is renamed or compressed later.

    exports: paths and names of the profiler's output.
    """
    name = path.rpartition("/")[2]
    finals = (path, name, f"{name}.gz", name.removesuffix(".tmp"), path.removesuffix(".tmp"))
    return any(final in exports for final in finals)


def exports_warnings(paths: Iterable[str]) -> list[str]:
    """Warnings about exports that are left out."""
    names = ", ".join(sorted(paths))
    return [f"files that the profiler itself wrote are left out: {names}"] if names else []


def shown(path: bytes) -> str:
    """The path as text, with bytes that are not UTF-8 as escapes."""
    return path.decode("utf-8", "backslashreplace")
