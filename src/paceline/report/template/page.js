"use strict";
// Pointing at a chart, and zooming. Without this script every chart is there all the same.
for (const figure of document.querySelectorAll(".chart")) {
  document.getElementById("hint").hidden = false;
  const data = JSON.parse(figure.querySelector("script").textContent);
  const area = figure.querySelector(".area"), svg = area.querySelector("svg"), tools = figure.querySelector(".tools");
  const slider = tools.querySelector("input"), output = tools.querySelector("output"), across = figure.querySelector(".across");
  const cursor = area.appendChild(document.createElement("div")), chosen = area.appendChild(document.createElement("div"));
  const high = svg.viewBox.baseVal.height, least = (data.to - data.from) / 200;
  let from = data.from, to = data.to, at = null, dragged = null;
  cursor.className = "cursor"; chosen.className = "chosen"; cursor.hidden = chosen.hidden = true;
  tools.hidden = false;

  const number = (value) => value == null ? "not known" : Number(value.toPrecision(4)).toLocaleString("en");
  const share = (value) => 100 * (value - from) / (to - from);

  function nearest(value) {
    let best = 0;
    data.x.values.forEach((one, k) => { if (Math.abs(one - value) < Math.abs(data.x.values[best] - value)) best = k; });
    return best;
  }

  function ofLines(value) {
    const k = nearest(value), parts = [];
    for (const one of data.lines) parts.push(`${one.name} ${number(one.values[k])}`);
    for (const one of data.bands) parts.push(`${one.name} ${number(one.low[k])} to ${number(one.high[k])}`);
    return [data.x.values[k], `${data.x.name} ${number(data.x.values[k])}: ${parts.join(", ")} ${data.unit}`];
  }

  function ofRows(value) {
    const seconds = value / data.scale, names = (rows) => rows.map((row) => row.name).join(", ") || "none";
    const during = (low, high) => data.rows.filter((row) => row.bars.some((bar) => bar[low] <= seconds && seconds < bar[high]));
    return [value, `${number(value)} ${data.unit}: computing ${names(during(0, 1))}; waiting ${names(during(1, 2))}`];
  }

  function read(value) {
    const [where, text] = (data.rows ? ofRows : ofLines)(Math.min(Math.max(value, data.from), data.to));
    at = where; output.textContent = text; slider.value = where; slider.setAttribute("aria-valuetext", text);
    cursor.hidden = at < from || at > to; cursor.style.left = `${share(at)}%`;
  }

  function ticks() {
    const rough = (to - from) / 5, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= 0.7 * rough), found = [];
    for (let k = Math.ceil(from / step - 1e-9); k * step <= to + 1e-9 * step; k++) found.push(k * step);
    across.replaceChildren(...found.map((value) => {
      const label = document.createElement("span");
      label.style.left = `${share(value)}%`; label.textContent = Number(value.toPrecision(12)).toLocaleString("en", { maximumFractionDigits: 12 });
      return label;
    }));
  }

  function zoom(low, high_) {
    const width = Math.min(Math.max(high_ - low, least), data.to - data.from);
    from = Math.min(Math.max(low, data.from), data.to - width); to = from + width;
    const left = 1000 * (from - data.from) / (data.to - data.from), wide = 1000 * width / (data.to - data.from);
    svg.setAttribute("viewBox", `${left} 0 ${wide} ${high}`);
    slider.min = from; slider.max = to;
    ticks();
    if (at !== null) read(at);
  }

  const pointed = (event) => {
    const box = area.getBoundingClientRect();
    return from + (to - from) * Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1);
  };
  area.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "mouse") { dragged = pointed(event); area.setPointerCapture(event.pointerId); }
    read(pointed(event));
  });
  area.addEventListener("pointermove", (event) => {
    const value = pointed(event);
    read(value);
    if (dragged === null) return;
    const [low, high_] = [Math.min(dragged, value), Math.max(dragged, value)];
    chosen.hidden = false; chosen.style.left = `${share(low)}%`; chosen.style.width = `${share(high_) - share(low)}%`;
  });
  area.addEventListener("pointerup", (event) => {
    const value = pointed(event), begun = dragged;
    dragged = null; chosen.hidden = true;
    if (begun !== null && Math.abs(value - begun) > 0.02 * (to - from)) zoom(Math.min(begun, value), Math.max(begun, value));
  });
  area.addEventListener("dblclick", () => zoom(data.from, data.to));
  slider.addEventListener("input", () => read(Number(slider.value)));
  tools.addEventListener("click", (event) => {
    const factor = event.target.closest("button")?.dataset.zoom;
    if (factor === undefined) return;
    const middle = at !== null && at >= from && at <= to ? at : (from + to) / 2, half = factor * (to - from) / 2;
    if (half) zoom(middle - half, middle + half); else zoom(data.from, data.to);
  });
}
