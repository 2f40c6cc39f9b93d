"""Executor archive: the packages that Spark's workers need, as one file for `spark.archives`.

    bin/python     runs the executor's own Python with the packages below
    lib/           this package as it runs here, and its dependencies at the versions that are installed here

uv installs wheels for the executors' Python and platform, whatever those of this machine are. PySpark is not included,
since executors have it, nor pandas and Dagster, which no worker needs. A worker that evaluates no SQL needs no
DataFusion either. Libraries of Arrow that neither Spark nor this package loads are left out, unless pyarrow is among
the packages of the user's functions.
Start with `write_archive`.
"""

import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import distribution, distributions
from importlib.util import find_spec
from pathlib import Path

from lance_core import InvalidInput, LanceError, MissingDependency

PROJECT = "lance-assets"
PACKAGES = ("lance_core", "lance_assets", "pyspark_lance")
PLATFORMS = {"linux_x86_64": "x86_64-manylinux_2_28", "linux_aarch64": "aarch64-manylinux_2_28"}
"""Platforms of executors, and their names in uv."""
SUFFIXES = (".tar.gz", ".tgz")
SQL_ENGINE = "datafusion"
_UNUSED_DIRECTORIES = frozenset({"__pycache__", "tests", "include", "sboms"})
_UNUSED_SUFFIXES = (".a", ".c", ".cc", ".h", ".hpp", ".pxd", ".pxi", ".pyc", ".pyi", ".pyx")
_UNUSED_PARTS = re.compile(r"lib/numpy/(f2py|distutils)/.*|lib/numpy/_core/_simd\..*|.*/_\w+_tests\..*\.so")
"""Compilers of extensions, and extensions that only tests load."""
_UNUSED_LIBRARIES = re.compile(r"lib(arrow|arrow_python)_(flight|s3)\.so.*|_(flight|s3fs)\..*\.so")
"""The RPC framework and the S3 client of Arrow."""
_LIBRARY = re.compile(r"lib.*\.so[.0-9]*")
"""Name of a shared library. A wheel has a copy of some for each of its names."""
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[([^]]*)\])?([^;]*)(?:;(.*))?")
_EXTRA = re.compile(r"(?:(.*) and)?\s*extra == ['\"]([^'\"]+)['\"]\s*")
LAUNCHER = """\
#!/bin/sh
# Runs this machine's Python {python} with the packages of this archive.
home=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd) || exit 127
PYTHONPATH="$home/lib${{PYTHONPATH:+:$PYTHONPATH}}"
export PYTHONPATH
if ! command -v python{python} >/dev/null 2>&1; then
  echo "this archive is for Python {python}, and python{python} is not on the path of $(hostname)" >&2
  exit 127
fi
exec python{python} "$@"
"""


@dataclass(frozen=True, slots=True)
class ArchiveSpec:
    """Contents of an archive."""

    python: str
    """Python of the executors, such as 3.11: the driver's, which a worker checks."""
    platform: str
    """One of `PLATFORMS`."""
    extras: tuple[str, ...] = ()
    """Extras of this package that workers need, such as `s3`."""
    packages: tuple[str, ...] = ()
    """Requirements of the user's own functions."""
    with_sql: bool = True
    """`True` if workers can evaluate SQL."""

    @property
    def has_all_of_arrow(self) -> bool:
        return any(_name_of(each) == "pyarrow" for each in self.packages)


@dataclass(frozen=True, slots=True)
class WrittenArchive:
    """File that was written, with its size and that of its contents, in bytes."""

    path: Path
    size: int
    unpacked_size: int
    files: int


def write_archive(spec: ArchiveSpec, path: Path) -> WrittenArchive:
    """Install the packages into a temporary directory and write them to an archive."""
    if not path.name.endswith(SUFFIXES):
        raise InvalidInput(f"{path}: Spark unpacks an archive by its name; end it with {' or '.join(SUFFIXES)}")
    if spec.platform not in PLATFORMS:
        raise InvalidInput(f"unknown platform {spec.platform!r}; choose one of {', '.join(PLATFORMS)}")
    if not re.fullmatch(r"3\.\d+", spec.python):
        raise InvalidInput(f"{spec.python!r} is not a release of Python such as 3.11")
    uv = find_uv()
    requirements = [*requirements_of(PROJECT, spec.extras), *spec.packages]
    if not spec.with_sql:
        requirements = [each for each in requirements if _name_of(each) != SQL_ENGINE]
    with tempfile.TemporaryDirectory(prefix="executors-") as directory:
        root = Path(directory)
        _install(uv, spec, requirements, root / "lib")
        _copy_project(root / "lib")
        launcher = root / "bin" / "python"
        launcher.parent.mkdir()
        launcher.write_text(LAUNCHER.format(python=spec.python))
        launcher.chmod(0o755)
        return compress(root, path, all_of_arrow=spec.has_all_of_arrow)


def find_uv() -> str:
    """Return the path of uv, on the path or in this environment."""
    beside = Path(sys.executable).with_name("uv")
    if found := shutil.which("uv") or (str(beside) if beside.exists() else None):
        return found
    raise MissingDependency("pack-executors needs uv, which installs wheels for other platforms: pip install uv")


def requirements_of(project: str, extras: Iterable[str]) -> list[str]:
    """Return the requirements of an installed project with some of its extras, without markers of extras."""
    wanted = list(extras)
    known = distribution(project).metadata.get_all("Provides-Extra") or []
    if unknown := [extra for extra in wanted if extra not in known]:
        raise InvalidInput(f"{project} has no extra {unknown[0]!r}; its extras are {', '.join(known)}")
    return select_requirements(project, distribution(project).requires or (), wanted)


def select_requirements(project: str, declared: Sequence[str], extras: Sequence[str]) -> list[str]:
    """Return the declared requirements that apply to some extras, and those of the extras that they contain.

    >>> select_requirements("p", ["a>=1", "b; (python_version >= '3.12') and extra == 'x'", "c; extra == 'y'"], ["x"])
    ['a>=1', "b;(python_version >= '3.12')"]
    """
    requirements: list[str] = []
    for match in filter(None, map(_REQUIREMENT.match, declared)):
        name, inner_extras, bounds, marker = match.groups()
        of_extra = _EXTRA.fullmatch(marker or "")
        if of_extra is not None:
            marker, extra = of_extra.groups()
            if extra not in extras:
                continue
        inner = [each.strip() for each in (inner_extras or "").split(",") if each.strip()]
        if name == project:
            requirements += select_requirements(project, declared, inner)
        else:
            suffix = f";{marker.strip()}" if marker else ""
            requirements.append(f"{name}{f'[{inner_extras}]' if inner else ''}{bounds.strip()}{suffix}")
    return list(dict.fromkeys(requirements))


def _name_of(requirement: str) -> str:
    match = _REQUIREMENT.match(requirement.strip())
    return "" if match is None else re.sub(r"[-_.]+", "-", match[1]).lower()


def _install(uv: str, spec: ArchiveSpec, requirements: Iterable[str], target: Path) -> None:
    constraints = target.with_name("constraints.txt")
    constraints.write_text("".join(f"{each}\n" for each in _installed_versions()))
    command = [
        *(uv, "pip", "install", "--quiet", "--no-config", "--target", str(target), "--python", sys.executable),
        *("--python-version", spec.python, "--python-platform", PLATFORMS[spec.platform]),
        *("--only-binary", ":all:", "--constraint", str(constraints), *requirements),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    constraints.unlink()
    if done.returncode:
        raise LanceError(
            f"uv could not install the packages for Python {spec.python} on {spec.platform}:\n{done.stderr.strip()}"
        )


def _installed_versions() -> Iterator[str]:
    """Yield the versions of this environment, except local builds, which no registry has."""
    for each in distributions():
        name, version = each.metadata["Name"], each.version
        if name and version and "+" not in version and name != PROJECT:
            yield f"{name}=={version}"


def _copy_project(target: Path) -> None:
    """Copy this package as it is imported here, which may be a source tree."""
    for name in PACKAGES:
        found = find_spec(name)
        assert found is not None
        assert found.origin is not None
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(Path(found.origin).parent, target / name, ignore=ignored, dirs_exist_ok=True)
    installed = distribution(PROJECT)
    metadata = target / f"{PROJECT.replace('-', '_')}-{installed.version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(installed.read_text("METADATA") or "")


def compress(root: Path, path: Path, *, all_of_arrow: bool) -> WrittenArchive:
    """Write the files of a directory in a fixed order and without times, so that equal contents are equal archives.
    Further copies of a shared library become links."""
    unpacked_size = files = 0
    first_copies: dict[tuple[Path, bytes], str] = {}
    incomplete = path.with_name(f"{path.name}.incomplete")
    try:
        with (
            incomplete.open("wb") as raw,
            gzip.GzipFile("", "wb", 6, raw, mtime=0) as compressed,
            tarfile.open(fileobj=compressed, mode="w") as archive,
        ):
            for file in _used_files(root, all_of_arrow=all_of_arrow):
                info = _without_origin(archive.gettarinfo(file, file.relative_to(root).as_posix()))
                files += 1
                if _LIBRARY.fullmatch(file.name):
                    first = first_copies.setdefault((file.parent, _digest(file)), file.name)
                    if first != file.name:
                        info.type, info.linkname, info.size = tarfile.SYMTYPE, first, 0
                        archive.addfile(info)
                        continue
                with file.open("rb") as content:
                    archive.addfile(info, content)
                unpacked_size += info.size
        os.replace(incomplete, path)
    finally:
        incomplete.unlink(missing_ok=True)
    return WrittenArchive(path, path.stat().st_size, unpacked_size, files)


def _digest(file: Path) -> bytes:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").digest()


def _used_files(root: Path, *, all_of_arrow: bool) -> Iterator[Path]:
    for file in sorted(path for path in root.rglob("*") if path.is_file()):
        relative = file.relative_to(root)
        if (
            _UNUSED_DIRECTORIES.isdisjoint(relative.parts)
            and not file.name.endswith(_UNUSED_SUFFIXES)
            and not _UNUSED_PARTS.fullmatch(relative.as_posix())
            and (all_of_arrow or "pyarrow" not in relative.parts or not _UNUSED_LIBRARIES.fullmatch(file.name))
        ):
            yield file


def _without_origin(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.mtime = info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info
