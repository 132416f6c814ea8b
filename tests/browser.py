"""A headless Chromium, and pictures of a report: python -m tests.browser runs/quickstart/report.html docs/images.

Pictures of a page's top come with a digest of what draws pages, by which a test says when they have aged.
"""

import hashlib
import io
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
COLORS, HEIGHT = 160, 1150
SOURCES = Path(__file__).parents[1] / "app/report"
DRAWN_BY = "drawn-by.sha256"  # beside the pictures
PICTURES = {"light": (1280, False), "dark": (1280, True), "narrow": (400, False)}


def missing() -> str | None:
    """What is not here, None if a browser can be driven."""
    if not any(map(shutil.which, BROWSERS)):
        return "no Chromium"
    return None if shutil.which("chromedriver") else "no chromedriver"


@contextmanager
def browser(width: int = 1280, height: int = 900, dark: bool = False) -> Iterator[webdriver.Chrome]:
    """A browser that logs its console and every request it makes."""
    options = Options()
    options.binary_location = next(filter(None, map(shutil.which, BROWSERS)))
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--hide-scrollbars",
        "--no-first-run",
        f"--window-size={width},{height}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        emulate(driver, width, height, dark)
        yield driver
    finally:
        driver.quit()


def emulate(driver: webdriver.Chrome, width: int, height: int, dark: bool = False) -> None:
    """A screen of that size in CSS pixels, whose system prefers light or dark colours."""
    screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


def take_pictures(page: Path, directory: Path, height: int | None = HEIGHT) -> list[Path]:
    """PNGs of the page's top, light, dark and narrow; `height` None takes the whole page."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    with browser() as driver:
        for name, (width, dark) in PICTURES.items():
            emulate(driver, width, height or 900, dark)
            driver.get(page.resolve().as_uri())
            emulate(driver, width, height or driver.execute_script("return document.body.scrollHeight"), dark)
            driver.execute_script("return new Promise((done) => requestAnimationFrame(() => setTimeout(done, 200)))")
            paths.append(directory / f"{page.stem}-{name}.png")
            screenshot = Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB")
            screenshot.quantize(COLORS, dither=Image.Dither.NONE).save(paths[-1], optimize=True)  # a third of the bytes
    return paths


def drawing_digest() -> str:
    """SHA-256 over what decides how a report looks: templates, styles, scripts, and the code of its first part."""
    files = [*sorted((SOURCES / "assets").glob("*.*")), SOURCES / "page.py"]
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


def main(page: Path, directory: Path, whole: bool) -> None:
    """Take the pictures, of the top with their digest, and print their paths."""
    for picture in take_pictures(page, directory, None if whole else HEIGHT):
        print(picture)
    if not whole:
        (directory / DRAWN_BY).write_text(drawing_digest() + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), "--whole" in sys.argv)
