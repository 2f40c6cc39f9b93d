"""UI tests: Dagster's pages in a real browser show a table, its versions and a failed audit.

`make test-ui` runs them; the screenshots are in `.ui/`, and two of them in the README.
"""

import time
from pathlib import Path

import dagster as dg
import pytest

from lance_assets.demo.workspace import DemoWorkspace
from tests.ui.browser import Browser
from tests.ui.conftest import Demo

DIALOG = ".bp5-overlay-enter-done [role=dialog]"  # after it has faded in
PICTURE = "img[src^='data:image/svg+xml']"
MANY_PARTITIONS = 10_000
RECORDED = 100
"""Number of partitions with a stored event; storing all of them would take minutes."""
MANY_S_MAX = 30.0
"""Measured on two busy cores: listed after 1.6 s, found and displayed after 0.4 s more."""
pytestmark = pytest.mark.timeout(600)


def is_picture(path: Path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 20_000


def expect_picture(pages: Browser, place: str = PICTURE) -> None:
    image = pages.page.locator(place).first
    image.wait_for(state="visible")
    assert image.evaluate("image => image.decode().then(() => image.naturalWidth)") > 0


def test_the_graph_shows_writes_ledgers_and_profiles(pages: Browser) -> None:
    pages.open("/asset-groups?expanded=lance_assets_demo%3A__repository__%3Aorders")
    pages.open("/locations/lance_assets_demo/asset-groups/orders/lineage")
    pages.expect_texts("orders_append", "orders_delivery", "orders_profile", "3 partitions", "100% filled")
    assert is_picture(pages.save_picture("graph"))


def test_the_ledger_has_a_partition_for_each_version(pages: Browser, demo: Demo) -> None:
    page = pages.open("/assets/orders?view=partitions")
    pages.expect_texts("v0000000001", "v0000000002", "v0000000003")
    page.get_by_text("v0000000002").first.click()
    pages.expect_texts("Append", "lance/planned_on", "lance/rows_added", "dagster/row_count", "lance/run")
    assert is_picture(pages.save_picture("ledger"))


def test_the_page_of_a_ledger_shows_its_checks(pages: Browser) -> None:
    pages.open("/assets/orders?view=checks")
    pages.expect_texts("keys_unique", "row_change", "row_count", "schema_stable")
    assert is_picture(pages.save_picture("checks"))


def test_a_profile_has_figures_and_pictures(pages: Browser) -> None:
    page = pages.open("/assets/orders_profile?view=partitions&partition=v0000000003")
    pages.expect_texts("lance/rows", "lance/columns_profile")
    expect_picture(pages)  # the small picture, which is in the metadata table itself
    assert is_picture(pages.save_picture("profile"))
    for number, name in enumerate(("lance/fragment_map", "lance/version_graph")):
        pages.expect_texts(name)
        page.get_by_text("[Show Markdown]").nth(number).click()
        expect_picture(pages, f"{DIALOG} {PICTURE}")
        assert is_picture(pages.save_picture(name.replace("/", "_")))
        page.keyboard.press("Escape")
        page.locator(DIALOG).wait_for(state="detached")


def test_the_inputs_of_a_version_are_a_picture(pages: Browser) -> None:
    page = pages.open("/assets/cities_counted?view=overview")
    pages.expect_texts("lance/inputs", "lance/lineage")
    page.get_by_text("[Show Markdown]").first.click()
    expect_picture(pages, f"{DIALOG} {PICTURE}")
    assert is_picture(pages.save_picture("lineage"))


def test_a_failed_audit_names_the_findings_and_the_detached_version(pages: Browser, demo: Demo) -> None:
    pages.open(f"/runs/{demo.runs['orders_delivery']}")
    pages.expect_texts("audit", "amounts")
    assert is_picture(pages.save_picture("audit"))
    pages.open("/assets/orders_delivery?view=checks")
    pages.expect_texts("amounts")
    assert is_picture(pages.save_picture("audit_check"))
    # The failed audit left no fourth version.
    page = pages.open("/assets/orders?view=partitions")
    pages.expect_texts("v0000000003")
    assert page.get_by_text("v0000000004").count() == 0


def test_ten_thousand_partitions_are_listed_and_found(pages: Browser, demo: Demo) -> None:
    """The page of a ledger with very many versions lists its partitions and finds one of them in time."""
    keys = [f"v{number:010}" for number in range(1, MANY_PARTITIONS + 1)]
    with dg.DagsterInstance.from_config(str(DemoWorkspace(demo.root).dagster_home)) as instance:
        instance.add_dynamic_partitions("lance/cities", keys)
        for key in keys[-RECORDED:]:
            instance.report_runless_asset_event(dg.AssetMaterialization("cities", partition=key))
    started = time.perf_counter()
    page = pages.open("/assets/cities?view=partitions")
    pages.expect_texts(keys[0], "10,000")
    opened = time.perf_counter() - started
    started = time.perf_counter()
    page.get_by_placeholder("Filter by name").first.fill("09950")
    pages.expect_texts(keys[9949])
    page.get_by_text(keys[0]).first.wait_for(state="hidden")
    page.get_by_text(keys[9949]).first.click()
    pages.expect_texts("Materialized")
    found = time.perf_counter() - started
    assert is_picture(pages.save_picture("many_partitions"))
    print(
        f"{MANY_PARTITIONS:,} partitions: listed after {opened:.1f} s, one found and displayed after {found:.1f} s more"
    )
    assert opened < MANY_S_MAX, opened
    assert found < MANY_S_MAX, found
