"""Headless Chromium that opens Dagster's pages and saves screenshots."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import playwright.sync_api
from playwright.sync_api import Page, expect, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SIZE = {"width": 1400, "height": 900}
TIMEOUT_MS = 60_000
"""Timeout for a page to show its content on a busy machine."""


@dataclass(frozen=True, slots=True)
class Browser:
    page: Page
    url: str
    pictures: Path

    def open(self, path: str) -> Page:
        self.page.goto(f"{self.url}{path}")
        return self.page

    def expect_texts(self, *texts: str) -> None:
        """Wait until all texts are visible anywhere on the page."""
        for text in texts:
            expect(self.page.get_by_text(text).first).to_be_visible(timeout=TIMEOUT_MS)

    def save_picture(self, name: str) -> Path:
        """Save a screenshot of the page."""
        path = self.pictures / f"{name}.png"
        self.page.screenshot(path=path)
        return path


def find_executable() -> str:
    named = os.environ.get("CHROMIUM")
    path = named or next(filter(None, map(shutil.which, NAMES)), None)
    if not path:
        raise FileNotFoundError(
            f"no browser found: the UI tests need one of {', '.join(NAMES)} on the path, or its path in CHROMIUM "
            "(on Debian: apt-get install chromium)"
        )
    return path


@contextmanager
def run_chromium() -> Iterator[playwright.sync_api.Browser]:
    """Run one Chromium. Playwright can be started once in a thread at a time, so all tests share it."""
    with sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=find_executable(), args=["--no-sandbox", "--disable-gpu"])
        try:
            yield chromium
        finally:
            chromium.close()


@contextmanager
def open_browser(chromium: playwright.sync_api.Browser, url: str, pictures: Path) -> Iterator[Browser]:
    """Open a page of its own, without cookies of others."""
    pictures.mkdir(parents=True, exist_ok=True)
    page = chromium.new_page(viewport=SIZE)  # type: ignore[arg-type]
    page.set_default_timeout(TIMEOUT_MS)
    try:
        yield Browser(page, url, pictures)
    finally:
        page.close()
