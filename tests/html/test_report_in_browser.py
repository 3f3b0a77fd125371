"""A report as someone uses it: of a run of the example and of a real capture, in both themes, by a link, with axe."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.html.conftest import SHOWN, PageOf
from tests.report.html_blocks import read_blocks
from tests.skips import skip_unless_ci

import traceable
from traceable.units import format_duration

try:
    from playwright.sync_api import Page, expect
except ImportError:
    skip_unless_ci("playwright is not installed: scripts/install.sh test")

REPOSITORY = Path(__file__).parents[2]
CAPTURE = "a100-transformer-forward.sqlite"
DARK, LIGHT = "rgb(", "rgb("
TABS = (
    "Overview",
    "Timeline",
    "Ranges",
    "Steps",
    "Gaps",
    "Memory",
    "Kernels",
    "API",
    "Streams",
    "Requests",
    "Diagnosis",
)

FindViolations = Callable[[Page], list[str]]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page at the end of `make demo`."""
    folder = tmp_path_factory.mktemp("demo")
    command = [sys.executable, "-m", "traceable", "run", "--collector", "recorder", "-o", str(folder / "out")]
    command += ["--html", str(folder / "demo.html"), str(REPOSITORY / "examples" / "inference_server.py")]
    done = subprocess.run([*command, "--requests", "60"], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "demo.html"


@pytest.fixture(scope="module")
def capture(captures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("capture") / "capture.html"
    traceable.load(captures / "nsys" / CAPTURE).to_html(path)
    return path


def open_tab(page: Page, tab: str) -> None:
    page.get_by_role("tab", name=tab, exact=True).click()
    page.locator(SHOWN).first.wait_for()


def list_names(page: Page, table: str) -> list[str]:
    names: list[str] = (
        page.get_by_role("table", name=table, exact=True)
        .locator("tbody tr:not(.spacer)")
        .evaluate_all("rows => rows.map(row => row.children[0].textContent)")
    )
    return names


@pytest.mark.parametrize(("recording", "theme"), [("demo", "Light"), ("capture", "Dark")])
def test_axe_finds_nothing_on_any_tab(
    recording: str, theme: str, page_of: PageOf, find_violations: FindViolations, request: pytest.FixtureRequest
) -> None:
    page = page_of(request.getfixturevalue(recording))
    page.get_by_role("button", name=theme, exact=True).click()
    found: dict[str, list[str]] = {}
    for tab in page.get_by_role("tab").all_inner_texts():
        open_tab(page, tab)
        if violations := find_violations(page):
            found[tab] = violations
    assert found == {}


def test_a_table_is_sorted_and_searched(capture: Path, page_of: PageOf) -> None:
    page = page_of(capture, "tab=kernels")
    table = page.get_by_role("table", name="kernels", exact=True)
    table.wait_for()
    values: dict[str, Any] = read_blocks(capture.read_text())["view-kernels"][0]["table"]["values"]
    header = table.get_by_role("columnheader").nth(1)
    header.get_by_role("button").click()
    expect(header).to_have_attribute("aria-sort", re.compile("ascending|descending"))
    name = values["name"][0]
    page.get_by_label("Search kernels").fill(name[-25:])
    matches = [one for one in values["name"] if name[-25:].lower() in one.lower()]
    expect(table.locator("tbody tr:not(.spacer)")).to_have_count(len(matches))
    assert set(list_names(page, "kernels")) == set(matches)


def test_a_kernel_leads_to_its_range_and_back(capture: Path, page_of: PageOf) -> None:
    page = page_of(capture, "tab=timeline")
    page.locator("canvas.timeline-canvas").wait_for()
    search = page.get_by_label("Search the timeline")
    search.fill("gemm")
    search.press("Enter")
    panel = page.locator(".timeline-panel")
    expect(panel.locator("h2")).to_have_text(re.compile("^Kernel .*gemm", re.IGNORECASE))
    kernel = panel.locator("h2").inner_text()
    links = panel.locator(".timeline-links")
    links.locator("li", has_text="Range:").get_by_role("button").click()
    expect(panel.locator("h2")).to_have_text(re.compile("^Range "))
    links.locator("li", has_text=kernel.removeprefix("Kernel ")).get_by_role("button").first.click()
    expect(panel.locator("h2")).to_have_text(kernel)


def test_the_timeline_zooms_and_a_link_leads_to_the_moment(capture: Path, page_of: PageOf) -> None:
    page = page_of(capture, "tab=timeline")
    canvas = page.locator("canvas.timeline-canvas")
    canvas.wait_for()
    canvas.hover(position={"x": 300, "y": 40})
    page.mouse.wheel(0, -1500)
    page.wait_for_url(re.compile(r"[#&]t=-?\d+,\d+"))
    address = page.url.split("#")[1]
    other = page_of(capture, address)
    other.locator("canvas.timeline-canvas").wait_for()
    expect(other.get_by_role("tab", name="Timeline")).to_have_attribute("aria-selected", "true")
    assert other.url.split("#")[1] == address


def test_the_theme_is_switched_and_remembered(demo: Path, page_of: PageOf) -> None:
    page = page_of(demo, color_scheme="light")
    read_background = "getComputedStyle(document.documentElement).backgroundColor"
    light = page.evaluate(read_background)
    page.get_by_role("button", name="Dark", exact=True).click()
    assert page.evaluate(read_background) != light
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert page.evaluate(read_background) != light


def test_the_first_screen_has_the_numbers_of_the_recording(capture: Path, captures: Path, page_of: PageOf) -> None:
    page = page_of(capture)
    recording = traceable.load(captures / "nsys" / CAPTURE)
    longest = max(row["cpu_total_ns"] for row in recording.ranges().rows())
    assert format_duration(longest) in page.get_by_role("tabpanel").inner_text()
