"""Draw the pictures of docs/images: the first screen, the timeline and a comparison, dark and light, wide and narrow.

Needs the suite's environment and Debian's Chromium. Of a real capture, so that there is GPU work to see:

    python scripts/screenshots.py REPORT CANDIDATE

REPORT and CANDIDATE are anything that `traceable compare` reads, as the same program before and after a change.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Literal, TypeAlias

from playwright.sync_api import Browser, sync_playwright

import traceable
from traceable.cli.main import main as run_command

Theme: TypeAlias = Literal["light", "dark"]

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
CHROMIUM = "/usr/bin/chromium"
WIDTHS = {1280: 860, 390: 844}
"""The height of each width, in pixels."""

THEMES: tuple[Theme, ...] = ("light", "dark")

ADDRESSES = {"report": "tab=overview", "timeline": "tab=timeline", "comparison": "tab=overview"}


def main() -> None:
    """Draw the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path, metavar="REPORT")
    parser.add_argument("candidate", type=Path, metavar="CANDIDATE")
    arguments = parser.parse_args()
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        # Short names, without a machine's paths.
        files = {"before": arguments.report.resolve(), "after": arguments.candidate.resolve()}
        os.chdir(folder)
        for name, path in files.items():
            Path(name + path.suffix).symlink_to(path)
        before, after = (name + path.suffix for name, path in files.items())
        report, comparison = Path(folder, "report.html"), Path(folder, "comparison.html")
        traceable.load(before).to_html(report)
        run_command(["compare", before, after, "--quiet", "--html", str(comparison)])
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for name, address in ADDRESSES.items():
            page = comparison if name == "comparison" else report
            for width in WIDTHS:
                for theme in THEMES:
                    take_picture(
                        browser, f"{page.as_uri()}#{address}", width, theme, IMAGES / f"{name}-{theme}-{width}.png"
                    )
        browser.close()


def take_picture(browser: Browser, address: str, width: int, theme: Theme, path: Path) -> None:
    """Write a picture of the top of a page, without its animations."""
    page = browser.new_page(
        viewport={"width": width, "height": WIDTHS[width]}, color_scheme=theme, reduced_motion="reduce"
    )
    page.goto(address)
    page.locator("main h2:visible, canvas.timeline-canvas:visible").first.wait_for()
    page.screenshot(path=path, animations="disabled")
    page.close()
    print(f"{path.relative_to(IMAGES.parents[1])} {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
