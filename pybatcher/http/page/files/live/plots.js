// Plots lines over the last two minutes as SVG, with an axis with units and a legend.

import { h, svg } from "../dom.js";
import { SPAN } from "./series.js";

const HEIGHT = 132;
const LEFT = 46;
const RIGHT = 8;
const TOP = 8;
const BOTTOM = 22;
const GAP = 3; // seconds without a point that break a line
const STEPS = [1, 2, 4, 6, 8, 10];

export class Plot {
  #width = 0;
  #drawn = null;

  // title, unit: labels of the axis. lines: [{key, name}], the first one in the accent colour.
  // least: the least end of the axis. format: returns a figure as text. look: called with the time
  // under the pointer, or null.
  constructor({ title, unit, lines, least, format, look }) {
    Object.assign(this, { title, unit, lines, least, format });
    this.figures = lines.map(() => h("b", {}, ""));
    const legend = lines.map(({ name }, i) =>
      h("span", { class: `legend line-${i}` }, h("i", {}), h("span", {}, name), this.figures[i]));
    this.svg = svg("svg", { role: "img", height: HEIGHT, "aria-label": `${title}, ${unit}` });
    this.empty = h("p", { class: "no-data" }, "no data yet");
    this.element = h("figure", { class: "plot" },
      h("figcaption", {}, h("h3", {}, title, " ", h("small", {}, unit)), h("div", { class: "legends" }, legend)),
      h("div", { class: "canvas" }, this.svg, this.empty));
    new ResizeObserver(([{ contentRect }]) => {
      this.#width = Math.floor(contentRect.width);
      if (this.#drawn !== null) this.draw(this.#drawn);
    }).observe(this.element.querySelector(".canvas"));
    this.svg.addEventListener("pointermove", (event) => look(this.#timeAt(event)));
    this.svg.addEventListener("pointerleave", () => look(null));
  }

  // points: those of a `Series`. now: the time at the right end. at: the marked time, or null.
  draw(drawn) {
    this.#drawn = drawn;
    const { points, marks, now, at } = drawn;
    const width = this.#width;
    if (width < LEFT + RIGHT + 20) return;
    const values = points.flatMap((point) => this.lines.map(({ key }) => point[key])).filter(isNumber);
    const top = ceiling(Math.max(this.least, ...values));
    const x = (time) => LEFT + (1 - (now - time) / SPAN) * (width - LEFT - RIGHT);
    const y = (value) => TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM);
    const paths = this.lines.map(({ key }, i) =>
      svg("path", { class: `line-${i}`, d: path(points, key, x, y) })).reverse();
    const shape = svg("path", { class: "area", d: area(points, this.lines[0].key, x, y) });
    this.svg.replaceChildren(
      ...this.#axes(width, top, x, y), shape, ...paths,
      ...marks.map((time) => mark(x(time))),
      ...(at === null ? [] : [cursor(x(at))]));
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.svg.setAttribute("width", width);
    const point = at === null ? points.at(-1) : nearest(points, at);
    this.lines.forEach(({ key }, i) => {
      this.figures[i].textContent = isNumber(point?.[key]) ? this.format(point[key]) : "–";
    });
    this.empty.hidden = values.length > 0;
    const told = this.lines.map(({ name }, i) => `${name} ${this.figures[i].textContent}`).join(", ");
    this.svg.setAttribute("aria-label", `${this.title}, ${this.unit}: ${told}`);
  }

  #axes(width, top, x, y) {
    const marks = [0, top / 2, top].flatMap((value) => [
      svg("line", { class: value === 0 ? "base" : "grid", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }),
      svg("text", { class: "tick", x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, this.format(value)),
    ]);
    const now = this.#drawn.now;
    const times = [[SPAN, "2 min ago", "start"], [SPAN / 2, "1 min", "middle"], [0, "now", "end"]];
    const names = times.map(([ago, name, anchor]) =>
      svg("text", { class: "tick", x: x(now - ago), y: HEIGHT - 5, "text-anchor": anchor }, name));
    return [...marks, ...names];
  }

  #timeAt({ offsetX }) {
    if (this.#drawn === null) return null;
    const share = (offsetX - LEFT) / (this.#width - LEFT - RIGHT);
    return this.#drawn.now - (1 - Math.min(Math.max(share, 0), 1)) * SPAN;
  }
}

const isNumber = (value) => typeof value === "number";

// Returns the points of a line in segments without a gap.
function stretches(points, key) {
  const found = [];
  let before = null;
  for (const point of points) {
    if (!isNumber(point[key])) before = null;
    else {
      if (before === null || point.time - before > GAP) found.push([]);
      found.at(-1).push(point);
      before = point.time;
    }
  }
  return found;
}

const place = (point, key, x, y) => `${x(point.time).toFixed(1)} ${y(point[key]).toFixed(1)}`;

function path(points, key, x, y) {
  return stretches(points, key)
    .map((some) => "M" + some.map((point) => place(point, key, x, y)).join("L"))
    .join("");
}

function area(points, key, x, y) {
  return stretches(points, key)
    .map((some) => {
      const line = some.map((point) => place(point, key, x, y)).join("L");
      const ends = [x(some.at(-1).time), x(some[0].time)].map((at) => at.toFixed(1));
      return `M${line}L${ends[0]} ${y(0)}L${ends[1]} ${y(0)}Z`;
    })
    .join("");
}

function nearest(points, time) {
  const away = (point) => Math.abs(point.time - time);
  const found = points.reduce((best, point) => (best && away(best) <= away(point) ? best : point), null);
  return found !== null && away(found) <= GAP ? found : null;
}

const upright = (name) => (x) => svg("line", { class: name, x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM });
const mark = upright("restart");
const cursor = upright("cursor");

// Returns the round number at or above a value.
export function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return STEPS.map((step) => step * power).find((one) => one >= value * 0.999999);
}
