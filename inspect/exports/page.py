"""The frame of the HTML report: its style and the script of its tooltips. `{{name}}` is filled in."""

from __future__ import annotations

PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>{{title}} · Bandscope</title>
<style>
:root { color-scheme: light; }
body { font: 14px/1.45 system-ui, "DejaVu Sans", sans-serif; color: #1c1c1a; background: #fff;
  max-width: 1200px; margin: 24px auto; padding: 0 20px; }
h1 { font-size: 22px; margin: 0 0 8px; }
h2 { font-size: 17px; margin: 28px 0 6px; border-bottom: 1px solid #ddd; }
h3 { font-size: 14px; margin: 14px 0 4px; }
small { font-weight: normal; color: #666; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 1px 14px; margin: 0; }
dt { color: #666; } dd { margin: 0; overflow-wrap: anywhere; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 20px; margin: 8px 0; align-items: center; }
.legend i { display: inline-block; width: 14px; height: 14px; border: 1px solid #bbb;
  vertical-align: -2px; margin-right: 1px; }
.how { margin-left: auto; }
figure { position: relative; margin: 0; cursor: crosshair; border: 1px solid #bbb; }
img { display: block; width: 100%; height: 360px; image-rendering: pixelated; }
svg { display: block; width: 100%; height: 72px; background: #FAFAF7; }
.ticks { display: flex; justify-content: space-between; color: #666; font-size: 11px; }
.axis { display: none; } .axis.on { display: block; }
.mark { position: absolute; top: 0; bottom: 0; width: 0; border-left: 1px solid #000;
  pointer-events: none; display: none; }
#tip { position: fixed; display: none; pointer-events: none; background: #1c1c1aee; color: #fff;
  padding: 6px 9px; border-radius: 4px; font-size: 12px; white-space: pre; z-index: 2;
  font-family: ui-monospace, "DejaVu Sans Mono", monospace; }
.table { max-height: 420px; overflow: auto; border: 1px solid #ddd; margin: 4px 0 10px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { position: sticky; top: 0; background: #f0f0ec; text-align: left; font-weight: 600; }
th, td { padding: 2px 10px; border-bottom: 1px solid #eee; vertical-align: top; }
@media print { .table { max-height: none; } }
</style></head><body>
<h1>{{title}}</h1>
<dl>{{facts}}</dl>
<h2>The arena over time</h2>
<div class="legend">{{legend}}<span class="how">across:
<label><input type="radio" name="axis" value="event" checked> events</label>
<label><input type="radio" name="axis" value="time"> time</label></span></div>
<p><small>Low bytes at the bottom. Each triple of colours: live, pending, holes; what is partly live
lies between live and holes.</small></p>
{{figures}}
{{tables}}
<div id="tip"></div>
<script>
"use strict";
const data = {{data}};
const tip = document.getElementById("tip");
const round = (n, d) => n.toLocaleString("en", {maximumFractionDigits: d, minimumFractionDigits: d});
function size(n) {
  for (const unit of ["B", "KiB", "MiB"]) {
    if (n < 1024) return round(n, unit === "B" ? 0 : 2) + " " + unit;
    n /= 1024;
  }
  return round(n, 2) + " GiB";
}
function show(axis) {
  for (const part of document.querySelectorAll(".axis"))
    part.classList.toggle("on", part.dataset.axis === axis);
}
function about(sample, index) {
  const [start, stop, live, holes, pending, pinned] = sample[2][index];
  const page = data.pageBytes[index];
  return `${data.bands[index].padEnd(10)} ${size(stop - start)} at ${size(start)}\\n` +
    `  live ${round(live, 0)} (${size(live * page)}), pending ${round(pending, 0)}, ` +
    `holes ${round(holes, 0)} (${size(holes * page)}), pinned ${round(pinned, 0)}`;
}
function who(sample, byte) {
  if (byte < data.sink) return "sink";
  const found = sample[2].findIndex(band => band[0] <= byte && byte < band[1]);
  return found < 0 ? "gap" : data.bands[found];
}
for (const figure of document.querySelectorAll("figure")) {
  const axis = data.axes[figure.closest(".axis").dataset.axis];
  const mark = figure.appendChild(document.createElement("div"));
  mark.className = "mark";
  figure.addEventListener("mousemove", event => {
    const box = figure.getBoundingClientRect();
    const across = Math.min(0.999999, Math.max(0, (event.clientX - box.left) / box.width));
    const sample = data.samples[axis[Math.floor(across * axis.length)]];
    const band = Number(figure.dataset.band);
    let text = `event ${round(sample[0], 0)}, ${round(sample[1] / 1e6, 3)} ms\\n`;
    if (!sample[2].length) text += "not known: this part of the trace is damaged";
    else if (band >= 0) text += about(sample, band);
    else {
      const byte = (1 - (event.clientY - box.top) / box.height) * data.total;
      text += `byte ${size(byte)}: ${who(sample, byte)}\\n\\n`;
      text += data.bands.map((_, index) => about(sample, index)).reverse().join("\\n");
    }
    tip.textContent = text;
    tip.style.display = "block";
    const left = event.clientX + 16 + tip.offsetWidth > innerWidth
      ? event.clientX - 16 - tip.offsetWidth : event.clientX + 16;
    tip.style.left = Math.max(0, left) + "px";
    tip.style.top = Math.min(event.clientY + 12, innerHeight - tip.offsetHeight) + "px";
    for (const other of figure.parentElement.querySelectorAll(".mark")) {
      other.style.display = "block";
      other.style.left = 100 * across + "%";
    }
  });
  figure.addEventListener("mouseleave", () => {
    tip.style.display = "none";
    for (const other of document.querySelectorAll(".mark")) other.style.display = "none";
  });
}
for (const input of document.querySelectorAll("input[name=axis]"))
  input.addEventListener("change", () => show(input.value));
show("event");
document.documentElement.dataset.ready = "yes";
</script></body></html>
"""
