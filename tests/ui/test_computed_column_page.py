"""The pages of a computed column, for the project of `docs/computed-columns.md`: they plot how the stale rows of the
table fall to zero after each append. A screenshot is in that document."""

import os
import subprocess
import sys
from collections.abc import Iterator

import playwright.sync_api
import pytest

from lance_core import Table
from tests.documentation import python_blocks
from tests.lance_assets.deployment import Deployment, GraphqlClient
from tests.ui.browser import open_browser
from tests.ui.conftest import PICTURES
from tests.ui.test_pages import is_picture

MODULE = "computed_columns_project"
RUNS = ("pages_append", "pages_words", "pages_append", "pages_words", "pages_words")
MATERIALIZE = f"""
import dagster as dg
from {MODULE} import defs
with dg.DagsterInstance.get() as instance:
    for name in {RUNS!r}:
        assert dg.materialize([defs.get_assets_def(name)], instance=instance, resources=dict(defs.resources)).success
"""
HISTORY = """query($asset: AssetKeyInput!) { assetOrError(assetKey: $asset) { ... on Asset {
  assetMaterializations(limit: 10) { metadataEntries { label ... on IntMetadataEntry { intValue } } } } } }"""
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    home = tmp_path_factory.mktemp("computed")
    (project,) = (block for _, block in python_blocks(["docs/computed-columns.md"]) if "lance_table(" in block)
    (home / f"{MODULE}.py").write_text(project.replace('"pages.lance"', repr(str(home / "pages.lance"))))
    (home / "dagster.yaml").write_text("telemetry:\n  enabled: false\nnux:\n  enabled: false\n")
    path = os.pathsep.join(filter(None, (str(home), os.environ.get("PYTHONPATH"))))
    return Deployment(home, {"PYTHONPATH": path, "DAGSTER_DISABLE_TELEMETRY": "yes"}, MODULE)


@pytest.fixture(scope="module")
def client(deployment: Deployment) -> Iterator[GraphqlClient]:
    environment = {**os.environ, **deployment.environment, "DAGSTER_HOME": str(deployment.home)}
    command = [sys.executable, "-c", MATERIALIZE]
    done = subprocess.run(command, env=environment, cwd=deployment.home, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    with deployment.webserver() as each:
        yield each


def test_the_page_plots_the_rows_that_each_run_computed(
    chromium: playwright.sync_api.Browser, deployment: Deployment, client: GraphqlClient
) -> None:
    freshness = Table.open(str(deployment.home / "pages.lance")).freshness("words")
    assert freshness is not None
    assert (freshness.rows, freshness.stale) == (2000, 0)
    events = client.query(HISTORY, asset={"path": ["pages_words"]})["assetOrError"]["assetMaterializations"]
    entries = [{entry["label"]: entry.get("intValue") for entry in event["metadataEntries"]} for event in events]
    assert [each["lance/rows_computed"] for each in entries] == [0, 1000, 1000]  # the newest first
    assert [each["lance/rows_stale"] for each in entries] == [0, 0, 0]
    with open_browser(chromium, client.url, PICTURES) as pages:
        pages.open("/assets/pages_words?view=overview")
        pages.expect_texts("lance/rows_computed", "lance/filled_share")
        assert is_picture(pages.save_picture("computed_column"))
        pages.open("/assets/pages?view=overview")
        pages.expect_texts("lance/column_sources", "computed from", "Source code")
        assert is_picture(pages.save_picture("column_sources"))
        pages.page.set_viewport_size({"width": 1400, "height": 1150})
        pages.open("/assets/pages?view=checks")
        pages.expect_texts("words_fresh", "lance/filled_share")
        pages.page.locator("canvas").first.wait_for(state="visible")
        assert is_picture(pages.save_picture("column_fresh"))
