"use strict";
// Pointing at a chart. Without this script every chart is there all the same.
for (const figure of document.querySelectorAll(".chart")) {
  document.getElementById("hint").hidden = false;
  const data = JSON.parse(figure.querySelector("script").textContent);
  const area = figure.querySelector(".area"), tools = figure.querySelector(".tools");
  const slider = tools.querySelector("input"), output = tools.querySelector("output");
  const cursor = area.appendChild(document.createElement("div"));
  cursor.className = "cursor"; cursor.hidden = true;
  tools.hidden = false;

  const number = (value) => value == null ? "not known" : Number(value.toPrecision(4)).toLocaleString("en");

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
    output.textContent = text; slider.value = where; slider.setAttribute("aria-valuetext", text);
    cursor.hidden = false; cursor.style.left = `${100 * (where - data.from) / (data.to - data.from)}%`;
  }

  area.addEventListener("pointermove", (event) => {
    const box = area.getBoundingClientRect();
    read(data.from + (data.to - data.from) * (event.clientX - box.left) / box.width);
  });
  slider.addEventListener("input", () => read(Number(slider.value)));
}
