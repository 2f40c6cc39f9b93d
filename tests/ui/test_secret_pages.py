"""Secrets on pages: Dagster's web server, its GraphQL answers and its pages show no value that options refer to.

The project refers to one secret under every option name (`lance_assets/canary_project.py`). A run of it fails, and
a browser opens every page that shows definitions, resources, runs, logs or assets. All that the browser receives is
searched, and answers to queries that ask for more.
"""

import json
import time
from collections.abc import Iterator

import dagster as dg
import playwright.sync_api
import pytest
from playwright.sync_api import Error, Response, WebSocket

from tests.lance_assets.canary_project import CANARY, LAKE, VARIABLE
from tests.lance_assets.deployment import Deployment, GraphqlClient
from tests.ui.browser import TIMEOUT_MS, Browser, open_browser
from tests.ui.conftest import PICTURES

MODULE = "tests.lance_assets.canary_project"
CONFIG = """
run_coordinator:
  module: dagster._core.run_coordinator
  class: DefaultRunCoordinator
telemetry:
  enabled: false
"""
RESOURCES = ("lance", "lance_io", "spark", "unused")
RUN_SECONDS_MAX = 300
pytestmark = pytest.mark.timeout(600)
ENDED = ("SUCCESS", "FAILURE", "CANCELED")
EVERYTHING = """
query Everything($run: ID!) {
  runOrError(runId: $run) { ... on Run {
    runConfigYaml tags { key value }
    stepStats { stepKey status attempts { startTime } }
    eventConnection(limit: 5000) { events { __typename
      ... on MessageEvent { message stepKey level }
      ... on ExecutionStepFailureEvent { error { message stack causes { message stack } } failureMetadata {
        metadataEntries { __typename label ... on TextMetadataEntry { text } ... on JsonMetadataEntry { jsonString }
          ... on MarkdownMetadataEntry { mdStr } } } }
      ... on MaterializationEvent { metadataEntries { __typename label ... on TextMetadataEntry { text }
        ... on JsonMetadataEntry { jsonString } ... on MarkdownMetadataEntry { mdStr } } }
    } } } }
  repositoriesOrError { ... on RepositoryConnection { nodes { name
    allTopLevelResourceDetails { name description configuredValues { key value type } resourceType
      configFields { name description defaultValueAsJson } }
    jobs { name description runTags { key value } modes { name resources { name description
      configField { configType { key recursiveConfigTypes { key description } } } } } }
    sensors { name description metadata { assetKeys { path } } }
    assetNodes { id description kinds tags { key value } metadataEntries { label description
      ... on TextMetadataEntry { text } ... on PathMetadataEntry { path } } }
  } } }
}
"""


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    home = tmp_path_factory.mktemp("canary")
    lake = home / "lake"
    lake.mkdir()
    (home / "dagster.yaml").write_text(CONFIG)
    return Deployment(home, {VARIABLE: CANARY, LAKE: str(lake), "DAGSTER_DISABLE_TELEMETRY": "yes"}, MODULE)


@pytest.fixture(scope="module")
def client(deployment: Deployment) -> Iterator[GraphqlClient]:
    with deployment.webserver() as each:
        yield each


@pytest.fixture(scope="module")
def failed_run(deployment: Deployment, client: GraphqlClient) -> str:
    run = client.launch(MODULE, "everything")
    status, deadline = "", time.monotonic() + RUN_SECONDS_MAX
    while status not in ENDED and time.monotonic() < deadline:
        answer = client.query("query($run: ID!) { runOrError(runId: $run) { ... on Run { status } } }", run=run)
        status = answer["runOrError"]["status"]
        time.sleep(1)  # the web server offers no event to other processes
    assert status == "FAILURE", deployment.log("webserver")
    return run


class Traffic:
    """Texts that a browser receives."""

    def __init__(self, browser: Browser) -> None:
        self.texts: list[str] = []
        self.operations: set[str] = set()
        browser.page.on("response", self._add_response)
        browser.page.on("websocket", self._follow)

    def _add_response(self, response: Response) -> None:
        if "/graphql" in response.url:
            self.operations.add(str(json.loads(response.request.post_data or "{}").get("operationName")))
        if response.headers.get("content-type", "").startswith(("application/json", "text/html")):
            try:
                self.texts.append(response.text())
            except Error:  # the page was left before its answer had arrived
                return

    def _follow(self, socket: WebSocket) -> None:
        socket.on("framereceived", lambda frame: self.texts.append(str(frame)))


def test_pages_and_answers_contain_no_secret(
    chromium: playwright.sync_api.Browser, deployment: Deployment, client: GraphqlClient, failed_run: str
) -> None:
    location = f"/locations/__repository__@{MODULE}"
    with open_browser(chromium, client.url, PICTURES) as browser:
        traffic = Traffic(browser)
        for path, text in (
            ("/locations", MODULE),
            *((f"{location}/resources/{name}", name) for name in RESOURCES),
            (f"{location}/jobs/everything", "View 5 assets"),
            (f"{location}/jobs/everything/playground", "everything"),
            ("/runs", "everything"),
            (f"/runs/{failed_run}", "lost_append"),
            (f"/runs/{failed_run}?logFileKey=stdout", "everything"),
            ("/assets/core", "core"),
            ("/assets/core_append?view=events", "core_append"),
            ("/assets/names?view=definition", "names"),
            ("/automation", "automation"),
        ):
            browser.open(path)
            browser.expect_texts(text)
            browser.page.wait_for_load_state("networkidle", timeout=TIMEOUT_MS)
            traffic.texts += [browser.page.content(), browser.page.inner_text("body")]
        browser.open(f"{location}/resources/lance")
        browser.expect_texts(VARIABLE)  # the pages show the reference
        assert len(traffic.operations) > 15, traffic.operations
    answer = json.dumps(client.query(EVERYTHING, run=failed_run))
    assert VARIABLE in answer
    assert "lost_append" in answer
    texts = [*traffic.texts, answer, deployment.log("webserver")]
    assert sum(VARIABLE in text for text in texts) > 2
    assert not [text[max(0, text.find(CANARY) - 200) :][:300] for text in texts if CANARY in text]
    with dg.DagsterInstance.from_config(str(deployment.home)) as instance:
        assert instance.get_run_by_id(failed_run)
