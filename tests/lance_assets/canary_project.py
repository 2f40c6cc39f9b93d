"""Canary project: definitions that refer to one secret under every option name, whose value a test then searches for.

It is also a code location of Dagster, if the variable `LAKE` names the folder of its tables.
"""

import os
from pathlib import Path
from typing import Any

import dagster as dg
import pandas as pd
from pyspark.sql import DataFrame, SparkSession

from lance_assets import LanceIOManager, LanceResource, SparkAppend, SparkSessionResource, lance_table
from lance_core.storage.option_names import SECRET_NAMES, SUPPORTED
from tests.lance_core.storage.test_secret_detection import ACCEPTED

CANARY = "canary-1f60"
VARIABLE = "CANARY_OF_THE_TEST"
LAKE = "LAKE_OF_THE_TEST"
UNKNOWN = [
    *("password", "my_secret", "aws_secret_acess_key", "their_token", "a_credential", "x_signature", "sas"),
    *("hf_token", "cos_secret_key", "oss_secret_access_key", "tos_security_token"),
]
NAMES = [name.removeprefix("*") for name in ACCEPTED] + UNKNOWN


def definitions(folder: Path, spark: Any) -> dg.Definitions:
    """Return a project whose resources refer to a secret under every supported name, in both forms."""
    secret = sorted(SECRET_NAMES & SUPPORTED)
    by_core = dict.fromkeys(secret, f"env:{VARIABLE}")
    by_dagster = {name: dg.EnvVar(VARIABLE) for name in secret}
    unreachable = {
        "aws_endpoint": "http://127.0.0.1:1",
        "allow_http": "true",
        "aws_region": "x",
        "client_max_retries": "0",
        "client_retry_timeout": "1s",
        "timeout": "1s",
        "connect_timeout": "1s",
        "aws_access_key_id": "x",
    }

    def rows(session: SparkSession, _context: object) -> DataFrame:
        return session.range(3)

    tables = [
        lance_table(name, uri=uri, storage_options=options, writes=[SparkAppend(f"{name}_append", rows)])
        for name, uri, options in (
            ("core", str(folder / "core.lance"), by_core),
            ("dagster", str(folder / "dagster.lance"), by_dagster),
            ("lost", "s3://bucket/lost.lance", unreachable | by_dagster),
        )
    ]
    stored = LanceResource(root=str(folder), storage_options=by_dagster)

    @dg.asset(io_manager_key="lance_io")
    def people() -> pd.DataFrame:
        return pd.DataFrame({"id": [1, 2]})

    @dg.asset(io_manager_key="lance_io")
    def names(context: dg.AssetExecutionContext, lance: LanceResource, people: pd.DataFrame) -> pd.DataFrame:
        options = lance.access()["storage_options"]
        assert {options[name] for name in secret} == {CANARY}
        context.log.info(f"{lance!r} {options.keys()}")
        return people

    resources = {
        "spark": spark,
        "lance": LanceResource(storage_options=by_dagster, manifest_store=dg.EnvVar(VARIABLE)),
        "lance_io": LanceIOManager(storage=stored),
        "unused": SparkSessionResource(
            remote=dg.EnvVar(VARIABLE),
            conf={f"spark.hadoop.{name}": dg.EnvVar(VARIABLE) for name in NAMES}
            | {"spark.executorEnv.LAKE": dg.EnvVar(VARIABLE)},
        ),
    }
    written = [table.write_key(f"{table.ledger.name}_append") for table in tables]
    everything = dg.define_asset_job(
        "everything", selection=[*written, people.key, names.key], executor_def=dg.in_process_executor
    )
    return dg.Definitions.merge(
        *(table.defs for table in tables),
        dg.Definitions(assets=[people, names], jobs=[everything], resources=resources),
    )


if LAKE in os.environ:
    defs = definitions(Path(os.environ[LAKE]), SparkSessionResource(master="local[1]"))
