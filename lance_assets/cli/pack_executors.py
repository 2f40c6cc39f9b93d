"""`lance-assets pack-executors`: the archive with which executors run this package, see `executor_archive.py`."""

import argparse
import json
import platform
import sys
from pathlib import Path

from lance_assets.cli import EXIT_OK
from lance_assets.cli.executor_archive import PLATFORMS, ArchiveSpec, WrittenArchive, write_archive

HELP = "write an archive with the packages that Spark executors need"
_MEGABYTE = 1024**2
_USE = """
Executors unpack it and run it with these settings, if they have Spark and Python {python}:
  spark.archives={path}#executors
  spark.pyspark.python=./executors/bin/python
  spark.pyspark.driver.python={driver}"""


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    release = f"{sys.version_info.major}.{sys.version_info.minor}"
    machine = f"linux_{platform.machine()}"
    add("--output", "-o", metavar="FILE", type=Path, default=Path("executors.tar.gz"), help="default: %(default)s")
    add("--python", metavar="RELEASE", default=release, help="Python of driver and executors (default: %(default)s)")
    add(
        "--platform", choices=list(PLATFORMS), default=machine if machine in PLATFORMS else next(iter(PLATFORMS)),
        help="platform of the executors (default: %(default)s)",
    )  # fmt: skip
    add(
        "--extra", metavar="NAME", action="append", default=[],
        help="extra of lance-assets that tasks need, such as s3, gcs, azure or search; repeatable",
    )  # fmt: skip
    add(
        "--package", metavar="REQUIREMENT", action="append", default=[],
        help="package that your own functions import, such as pandas; repeatable",
    )  # fmt: skip
    add(
        "--without-sql", action="store_true",
        help="leave out DataFusion: tasks can then not evaluate conditions and expressions in SQL",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    spec = ArchiveSpec(
        arguments.python,
        arguments.platform,
        tuple(arguments.extra),
        tuple(arguments.package),
        with_sql=not arguments.without_sql,
    )
    written = write_archive(spec, arguments.output)
    print(_as_json(written) if arguments.json else _as_text(written, spec))
    return EXIT_OK


def _as_json(written: WrittenArchive) -> str:
    sizes = {"bytes": written.size, "unpacked_bytes": written.unpacked_size, "files": written.files}
    return json.dumps({"path": str(written.path), **sizes})


def _as_text(written: WrittenArchive, spec: ArchiveSpec) -> str:
    packed, unpacked = (round(size / _MEGABYTE) for size in (written.size, written.unpacked_size))
    summary = f"{written.path}: {packed} MB, {unpacked} MB unpacked, {written.files:,} files"
    return summary + _USE.format(path=written.path, python=spec.python, driver=sys.executable)
