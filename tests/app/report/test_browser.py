"""Reports in a real browser: Debian's Chromium, headless. Skipped, and said so, where there is none."""

import io
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from app.report.page import write_report
from tests.app.report.runs import write_run
from tests.browser import browser, emulate, missing

pytestmark = [
    pytest.mark.slow("tool"),
    pytest.mark.skipif(missing() is not None, reason=f"{missing()}: reports are not looked at in a browser"),
]


@pytest.fixture(scope="module")
def driver() -> Iterator[webdriver.Chrome]:
    with browser() as chrome:
        yield chrome


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(write_run(tmp_path_factory.mktemp("runs") / "seen", steps=300))


def load(driver: webdriver.Chrome, page: Path, width: int = 1280, dark: bool = False) -> None:
    driver.get_log("browser")
    driver.get_log("performance")
    emulate(driver, width, 900, dark)
    driver.get(page.resolve().as_uri())
    if driver.execute_script("localStorage.clear(); return document.documentElement.dataset.theme"):
        driver.get_log("performance")  # of this load, which another test's theme spoiled
        driver.refresh()


def requests(driver: webdriver.Chrome) -> list[str]:
    """Every address that was asked for, the pictures inside the page left out."""
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    urls = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    return [url for url in urls if not url.startswith("data:")]


def picture(element: WebElement) -> np.ndarray:
    """Pixels [height, width, 3] as they are seen."""
    return np.asarray(Image.open(io.BytesIO(element.screenshot_as_png)).convert("RGB"), dtype=np.int64)


def near(pixels: np.ndarray, color: str) -> int:
    """How many pixels have nearly a colour, written #rrggbb."""
    rgb = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)])
    return int((np.abs(pixels - rgb).sum(axis=2) < 40).sum())


def css(driver: webdriver.Chrome, name: str) -> str:
    return str(driver.execute_script(f"return getComputedStyle(document.documentElement).getPropertyValue('{name}')"))


def test_it_loads_alone_and_in_silence(driver: webdriver.Chrome, report: Path) -> None:
    load(driver, report)
    assert requests(driver) == [report.resolve().as_uri()]
    assert driver.get_log("browser") == []
    assert driver.title == "seen"
    assert driver.find_element(By.CSS_SELECTOR, ".badge").text == "completed"


def test_charts_are_drawn_in_their_colours(driver: webdriver.Chrome, report: Path) -> None:
    load(driver, report)
    charts = driver.find_elements(By.CSS_SELECTOR, "[data-chart]")
    assert len(charts) == 15
    first = css(driver, "--c0")
    for chart in charts:
        name = chart.get_attribute("data-chart")
        color = css(driver, "--c1") if name in ("auc", "ne", "input_wait") else first
        canvas = chart.find_element(By.TAG_NAME, "canvas")
        driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", canvas)
        assert near(picture(canvas), color) > 25, name


def value_of(text: str) -> float:
    """The number that a label of an axis stands for."""
    units = {"T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3}
    plain = text.replace("−", "-")
    return float(plain[:-1]) * units[plain[-1]] if plain[-1] in units else float(plain)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cases=st.lists(
        st.tuples(
            st.sampled_from([-1, 1]),
            st.floats(-9, 12),
            st.one_of(st.none(), st.floats(-9, 12)),
            st.booleans(),
            st.integers(5, 30),
        ),
        min_size=20,
        max_size=20,
    )
)
def test_ticks_label_any_range(
    cases: list[tuple[int, float, float | None, bool, int]], driver: webdriver.Chrome, report: Path
) -> None:
    if driver.current_url != report.resolve().as_uri():
        load(driver, report)
    ranges = [
        (low, low if span is None else low + 10**span, is_log, most)
        for sign, size, span, is_log, most in cases
        for low in (sign * 10**size,)
    ]
    script = "return arguments[0].map((each) => { const at = ticks(...each); return [at, tickTexts(at)] })"
    for (low, high, _, most), (values, texts) in zip(ranges, driver.execute_script(script, ranges), strict=True):
        assert len(values) == len(texts) == len(set(texts)) <= most
        assert len(values) >= (2 if high > low else 1)
        assert all(low <= value <= high for value in values)
        assert [value_of(text) for text in texts] == pytest.approx(values, rel=1e-3 if high == low else 1e-12)
