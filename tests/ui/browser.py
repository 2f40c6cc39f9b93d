"""A headless Chromium that looks at Dagster's pages, and keeps what it saw as pictures."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Page, expect, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SIZE = {"width": 1400, "height": 900}
PATIENCE_MS = 60_000
"""For a page that shows what it is asked for; a busy machine is slow."""


@dataclass(frozen=True, slots=True)
class Browser:
    page: Page
    url: str
    pictures: Path

    def open(self, path: str) -> Page:
        self.page.goto(f"{self.url}{path}")
        return self.page

    def sees(self, *texts: str) -> None:
        """All of these, wherever they are on the page."""
        for text in texts:
            expect(self.page.get_by_text(text).first).to_be_visible(timeout=PATIENCE_MS)

    def keep(self, name: str) -> Path:
        """What is on the page now, as a picture for people to look at."""
        path = self.pictures / f"{name}.png"
        self.page.screenshot(path=path)
        return path


def executable() -> str:
    named = os.environ.get("CHROMIUM")
    found = named or next(filter(None, map(shutil.which, NAMES)), None)
    if not found:
        raise FileNotFoundError(
            f"no browser: the tests of the pages need one of {', '.join(NAMES)} on the path, or its path in CHROMIUM "
            "(on Debian: apt-get install chromium)"
        )
    return found


@contextmanager
def browser(url: str, pictures: Path) -> Iterator[Browser]:
    pictures.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=executable(), args=["--no-sandbox", "--disable-gpu"])
        page = chromium.new_page(viewport=SIZE)  # type: ignore[arg-type]
        page.set_default_timeout(PATIENCE_MS)
        try:
            yield Browser(page, url, pictures)
        finally:
            chromium.close()
