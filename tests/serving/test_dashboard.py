"""The dashboard in a real browser: figures, search, links, pages; on a phone, light and dark; nothing from elsewhere."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from serving.harness import Service

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (Debian: apt install chromium)"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    settings: dict[str, Any] = {
        "policy": {"keep_threshold": 0.5, "random_share": 0.0, "min_share": None},
        "keys": {"read": "rd", "admin": "ad"},
        "exporters": [{"name": "phoenix", "endpoint": "http://127.0.0.1:9/v1/traces", "project": "p"}],
    }
    made = Service(tmp_path_factory.mktemp("dashboard") / "home", settings).start()
    made.client.headers["authorization"] = "Bearer ad"
    for number in range(30):
        made.post_trace({"question": f"Where is {number}?", "final_answer": "I could not find it.", "project": "bank"})
    made.post_trace({"question": "q", "final_answer": "x", "project": "shop", "trace_id": "mine", "evidence": ["x"]})
    made.wait_for_decisions(31)
    yield made
    made.kill()


def opened(browser: Browser, live: Service, **options: Any) -> tuple[Page, list[str]]:
    """The dashboard with its key entered, and every address it asked for."""
    page = browser.new_page(**options)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("dialog", lambda dialog: dialog.accept("rd"))
    page.goto(live.api)
    page.wait_for_selector("#decisions tr")
    return page, asked


def test_figures_search_links_and_pages(browser: Browser, live: Service):
    page, asked = opened(browser, live)
    assert all(url.startswith(live.api) for url in asked), "nothing comes from elsewhere"
    assert page.inner_text("#status").startswith("ready")
    assert page.locator("#scores rect").count() == 20
    assert "phoenix" in page.inner_text("#exporters")
    expect(page.locator("#exporters")).to_contain_text("not reached", timeout=20_000)
    assert page.locator("#decisions tr").count() == 25
    page.click("#older")
    expect(page.locator("#decisions tr")).to_have_count(6)
    page.fill("input[name=project]", "shop")
    page.click("text=Search")
    expect(page.locator("#decisions tr")).to_have_count(1)
    assert "shop" in page.inner_text("#decisions")
    page.fill("input[name=project]", "")
    page.select_option("select[name=decision]", "keep")
    page.click("text=Search")
    expect(page.locator("#decisions tr")).to_have_count(25)
    trace_id = next(d["trace_id"] for d in live.decisions() if d["decision"] == "keep")
    page.fill("input[name=trace]", trace_id)
    page.click("text=Search")
    expect(page.locator("#decisions tr")).to_have_count(1)
    assert page.get_attribute("#decisions td:last-child a", "href") == f"http://127.0.0.1:9/redirects/traces/{trace_id}"
    page.click("#decisions a >> nth=0")
    assert trace_id in page.inner_text("tr.record")
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_readable_on_a_phone(browser: Browser, live: Service, scheme: Any, tmp_path: Path):
    page, _ = opened(browser, live, viewport={"width": 375, "height": 740}, color_scheme=scheme)
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= 375, "only the table scrolls sideways"
    colours = page.evaluate("(s => [s.color, s.backgroundColor])(getComputedStyle(document.body))")
    ink, paper = (_luminance(colour) for colour in colours)
    assert (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05) > 7  # WCAG 2.2, contrast AAA
    assert (paper < ink) == (scheme == "dark")
    page.screenshot(path=tmp_path / f"{scheme}.png", full_page=True)
    page.close()


def _luminance(colour: str) -> float:
    """Relative luminance of `rgb(…)` (WCAG 2.2)."""
    channels = [int(part) / 255 for part in colour[4:-1].split(",")]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
