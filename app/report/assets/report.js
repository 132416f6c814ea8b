"use strict";
(() => {
  const root = document.documentElement;
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const drawn = new Map();
  const HEIGHT = 250;

  const color = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  const minus = (text) => text.replaceAll("-", "−");

  function figure(value) {
    if (value == null) return "–";
    return minus(plainFigure(value));
  }

  function plainFigure(value) {
    const size = Math.abs(value);
    if (size >= 1e4) return Math.round(value).toLocaleString("en");
    if (size !== 0 && size < 1e-3) return value.toExponential(3);
    return String(Number(value.toPrecision(6)));
  }

  function line(series) {
    const stroke = color("--c" + (series.color % 8));
    const options = { label: series.name, stroke, width: 1.6, spanGaps: true, points: { show: false },
                      value: (plot, value) => figure(value) };
    if (series.kind === "points" || series.kind === "dots") options.points = { show: true, size: 7, fill: stroke };
    if (series.kind === "dots") options.paths = () => null; // not joined
    if (series.kind === "reference") Object.assign(options, { dash: [6, 5], width: 1.4 });
    if (series.kind === "edge") Object.assign(options, { stroke: "transparent", class: "edge" });
    if (series.kind === "bars") {
      Object.assign(options, { fill: stroke, width: 0, paths: uPlot.paths.bars({ size: [0.9], gap: 0 }) });
    }
    if (series.kind === "area") {
      Object.assign(options, { fill: stroke + "33", paths: uPlot.paths.stepped({ align: 0 }) });
    }
    if (series.kind === "line" && series.x.length < 2) options.points = { show: true, size: 7, fill: stroke };
    return options;
  }

  /** Round values that label an axis of `pixels`, the longest of them beside each other. */
  function splits(low, high, isLog, pixels, space) {
    let values = ticks(low, high, isLog, Math.max(5, Math.floor(pixels / space)));
    const widest = 8 * Math.max(...tickTexts(values).map((text) => text.length));
    while (values.length > 2 && space > 40 && widest * values.length > pixels) {
      values = values.filter((value, place) => place % 2 === 0);
    }
    return values;
  }

  function axes(chart) {
    const axis = { stroke: color("--quiet"), grid: { stroke: color("--grid"), width: 1 },
                   ticks: { stroke: color("--grid"), width: 1 }, font: "12px system-ui, sans-serif",
                   labelFont: "12px system-ui, sans-serif", labelSize: 20, values: (plot, values) => tickTexts(values),
                   filter: (plot, values) => values };
    const longest = (values) => Math.max(0, ...(values ?? []).map((text) => text.length));
    return [
      { ...axis, label: chart.x, size: 34,
        splits: (plot, side, low, high) => splits(low, high, chart.log_x, plot.width - 90, 60) },
      { ...axis, label: chart.y, size: (plot, values) => Math.max(44, 22 + 7 * longest(values)),
        splits: (plot, side, low, high) => splits(low, high, false, HEIGHT - 70, 30) },
    ];
  }

  /** The vertical axis: from 0 where lengths compare, and without outliers where there are any. */
  function heights(chart) {
    if (!chart.from_zero && !chart.limits) return {};
    return { range: (plot, lowest, highest) => {
      const [low, high] = chart.limits ?? [lowest, highest];
      const from = chart.from_zero ? Math.min(0, low) : low - 0.05 * (high - low || 1);
      return [from, high + 0.08 * (high - from || 1)];
    } };
  }

  /** Without a cursor the legend shows where lines over steps end, and no value of other charts. */
  function rest(plot) {
    if (plot.cursor.idx != null) return;
    const ends = plot.data.map((column) => column.findLastIndex((value) => value != null));
    plot.setLegend({ idxs: ends.map((end) => end < 0 ? null : end) }, false);
  }

  function options(chart, width) {
    const idle = (plot) => {
      plot.root.classList.toggle("idle", plot.cursor.idx == null && !chart.steps);
      rest(plot);
    };
    const made = {
      width, height: HEIGHT,
      scales: { x: chart.log_x ? { time: false, distr: 3, range: (plot, low, high) => [low * 0.95, high * 1.05] }
                               : { time: false }, y: heights(chart) },
      axes: axes(chart),
      series: [{ label: chart.x, value: (plot, value) => figure(value) }, ...chart.series.map(line)],
      legend: { live: true },
      cursor: { points: { size: 7 } },
      hooks: { ready: [idle], setLegend: [idle] },
    };
    if (chart.steps) made.cursor.sync = { key: "steps" };
    if (chart.band) {
      const place = (name) => 1 + chart.series.findIndex((series) => series.name === name);
      made.bands = [{ series: chart.band.map(place), fill: color("--c0") + "26" }];
    }
    return made;
  }

  const aligned = (chart) => uPlot.join(chart.series.map((series) => [series.x, series.y]));

  function draw(holder) {
    const chart = charts[holder.dataset.chart];
    drawn.get(holder)?.destroy();
    const plot = new uPlot(options(chart, Math.max(240, holder.clientWidth)), aligned(chart), holder);
    drawn.set(holder, plot);
  }

  const drawAll = () => document.querySelectorAll("[data-chart]").forEach(draw);

  function read(holder, step) {
    const plot = drawn.get(holder), last = plot.data[0].length - 1;
    const index = Math.min(last, Math.max(0, (plot.cursor.idx ?? (step > 0 ? -1 : last + 1)) + step));
    plot.setCursor({ left: plot.valToPos(plot.data[0][index], "x"), top: HEIGHT / 3 });
    const values = charts[holder.dataset.chart].series
      .map((series, place) => [series.name, plot.data[place + 1][index]])
      .filter(([, value]) => value != null).map(([name, value]) => `${name} ${figure(value)}`);
    const told = document.querySelector(`[data-reading="${holder.dataset.chart}"]`);
    told.textContent = `${charts[holder.dataset.chart].x} ${figure(plot.data[0][index])}: ${values.join(", ")}`;
  }

  function fillTable(details) {
    if (!details.open || details.querySelector("table")) return;
    const chart = charts[details.dataset.table], rows = aligned(chart);
    const box = document.createElement("div"), table = document.createElement("table");
    Object.assign(box, { className: "scroll", tabIndex: 0 });
    const head = table.createTHead().insertRow();
    for (const name of [chart.x, ...chart.series.map((series) => series.name)]) {
      head.append(Object.assign(document.createElement("th"), { scope: "col", textContent: name }));
    }
    const body = table.createTBody();
    for (let index = 0; index < rows[0].length; index++) {
      const row = body.insertRow();
      for (const column of rows) row.insertCell().textContent = figure(column[index]);
    }
    box.append(table);
    details.append(box);
  }

  const themes = ["system", "light", "dark"];
  const button = document.getElementById("theme");
  let theme = "system";
  try { theme = localStorage.getItem("clickwork-theme") || theme; } catch { /* a file:// page may have no storage */ }

  function show(name) {
    if (name === "system") delete root.dataset.theme;
    else root.dataset.theme = name;
    drawAll();
  }

  function choose(name) {
    theme = name;
    button.textContent = "Theme: " + name;
    try { localStorage.setItem("clickwork-theme", name); } catch { /* nothing is kept then */ }
    show(name);
  }

  button.addEventListener("click", () => choose(themes[(themes.indexOf(theme) + 1) % themes.length]));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  addEventListener("beforeprint", () => show("light"));
  addEventListener("afterprint", () => show(theme));
  document.addEventListener("toggle", (event) => event.target.dataset.table && fillTable(event.target), true);
  document.querySelectorAll("[data-chart]").forEach((holder) => holder.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) { event.preventDefault(); read(holder, step); }
  }));
  choose(themes.includes(theme) ? theme : "system");
  new ResizeObserver((entries) => {
    for (const { target } of entries) {
      const plot = drawn.get(target), width = Math.max(240, target.clientWidth);
      if (plot && plot.width !== width) plot.setSize({ width, height: HEIGHT });
    }
  }).observe(document.querySelector("[data-chart]") ?? document.body);
})();
