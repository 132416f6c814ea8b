"""The command: the schema on stdout, notes on stderr, the page beside; and the page in a browser."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from selenium import webdriver

from data_prep.sources.discover import resolve_sources
from extensions.inspect.command import _page_name, inspection_page
from extensions.inspect.proposal import propose_schema
from tests.browser import browser, missing
from tests.data_prep.tables import write
from tests.extensions.inspect.test_proposal import ads, ratings
from tests.forks import run_module


def test_the_schema_goes_to_stdout(tmp_path: Path) -> None:
    write(tmp_path / "ads.csv", ads())
    process = run_module("data_prep.inspect", "data.raw=ads.csv", "out=pages", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert yaml.safe_load(process.stdout)["label"] == "clicked"
    assert process.stderr.splitlines()[0] == "Rows are in order of shown_at."
    assert process.stderr.splitlines()[-1].startswith("pages/ads.html: ")
    assert (tmp_path / "pages/ads.html").read_text().startswith("<!doctype html>")
    refused = run_module("data_prep.inspect", "data.raw=ads.csv", "data.label=version", cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert len(refused.stderr.splitlines()) == 1


def test_pages_are_named_after_their_rows(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        write(tmp_path / name, ratings(40))
    sources = resolve_sources([str(tmp_path / "a.csv"), str(tmp_path / "b.csv")])
    assert _page_name("x/a.csv", sources[:1]) == "a"
    assert _page_name("logs/2024", sources) == "2024"
    assert _page_name("logs/*.csv", sources) == _page_name(["a.csv", "b.csv"], sources) == "table"


def charts_of(page: str) -> dict[str, Any]:
    match = re.search(r'<script type="application/json" id="charts">(.*?)</script>', page, re.DOTALL)
    assert match
    charts: dict[str, Any] = json.loads(match[1])
    return charts


def test_figures_of_the_page_are_pandas_s(tmp_path: Path) -> None:
    frame = pd.DataFrame(ads())
    page = inspection_page(propose_schema(resolve_sources(str(write(tmp_path / "ads.csv", ads())))), tmp_path)
    labels = frame.clicked == "yes"
    for site, rows in frame.groupby("site"):
        if len(rows) >= frame.site.value_counts().iloc[4]:
            cells = (f"{len(rows):,}", f"{len(rows) / len(frame):.1%}", f"{labels[rows.index].mean():.1%}")
            row = re.search(rf'<th scope="row">{site}</th>(.*?)</tr>', page, re.DOTALL)
            assert row
            assert tuple(re.findall(r">([^<>]+)</td>", row[1])) == cells
    charts = charts_of(page)
    [rate] = charts["label_rows"]["series"]
    assert rate["y"] == pytest.approx([part.mean() for part in np.array_split(labels.to_numpy(), 50)])
    [price] = charts["distribution_price"]["series"]
    assert sum(price["y"]) == len(frame)
    assert sum(charts["distribution_age"]["series"][0]["y"]) == (frame.age != "NA").sum()


@pytest.fixture(scope="module")
def driver() -> Iterator[webdriver.Chrome]:
    with browser() as chrome:
        yield chrome


@pytest.mark.slow("tool")
@pytest.mark.skipif(missing() is not None, reason=f"{missing()}: pages are not looked at in a browser")
@pytest.mark.parametrize("content", [ads, ratings])
def test_the_page_draws_all_charts_and_loads_nothing(driver: webdriver.Chrome, tmp_path: Path, content: Any) -> None:
    proposal = propose_schema(resolve_sources(str(write(tmp_path / "rows.csv", content()))))
    path = tmp_path / "page.html"
    path.write_text(inspection_page(proposal, tmp_path))
    driver.get(path.as_uri())
    drawn = driver.execute_script("return document.querySelectorAll('.chart canvas').length")
    assert drawn == len(charts_of(path.read_text())) > 0
    assert not driver.get_log("browser")
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    urls = [each["params"]["request"]["url"] for each in messages if each["method"] == "Network.requestWillBeSent"]
    assert [url for url in urls if not url.startswith("data:")] == [path.as_uri()]
    width = driver.execute_script("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert width == 0
