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

  const tick = (value) => value == null ? "" : minus(plainTick(value));

  function plainTick(value) {
    const size = Math.abs(value);
    if (size >= 1e9) return Number((value / 1e9).toPrecision(4)) + "G";
    if (size >= 1e6) return Number((value / 1e6).toPrecision(4)) + "M";
    if (size >= 1e4) return Number((value / 1e3).toPrecision(4)) + "k";
    if (size !== 0 && size < 1e-3) return value.toExponential().replace(/\.?0+e/, "e");
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

  /** 1, 2 and 5 times the powers of ten within a logarithmic axis. */
  function rounds(plot, axis, low, high) {
    const found = [];
    for (let power = 10 ** Math.floor(Math.log10(low)); power <= high; power *= 10) {
      found.push(...[1, 2, 5].map((factor) => factor * power).filter((value) => value >= low && value <= high));
    }
    return found;
  }

  function options(chart, width) {
    const axis = { stroke: color("--quiet"), grid: { stroke: color("--grid"), width: 1 },
                   ticks: { stroke: color("--grid"), width: 1 }, font: "12px system-ui, sans-serif",
                   labelFont: "12px system-ui, sans-serif", labelSize: 20 };
    const made = {
      width, height: HEIGHT,
      scales: { x: chart.log_x ? { time: false, distr: 3, range: (plot, low, high) => [low * 0.95, high * 1.05] }
                               : { time: false } },
      axes: [
        { ...axis, label: chart.x, values: (plot, ticks) => ticks.map(tick), size: 34, space: 60 },
        { ...axis, label: chart.y, values: (plot, ticks) => ticks.map(tick), size: 56 },
      ],
      series: [{ label: chart.x, value: (plot, value) => figure(value) }, ...chart.series.map(line)],
      legend: { live: true },
      cursor: { points: { size: 7 } },
    };
    if (chart.log_x) Object.assign(made.axes[0], { splits: rounds, filter: (plot, splits) => splits });
    if (chart.y_max != null) made.scales.y = { range: (plot, low) => [low - 0.05 * (chart.y_max - low), chart.y_max] };
    if (chart.from_zero) made.scales.y = { range: (plot, low, high) => [0, (high || 1) * 1.08] };
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
