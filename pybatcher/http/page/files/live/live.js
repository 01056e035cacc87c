// The live view: the activity of the server in the last two minutes.

import { h, show, tell } from "../dom.js";
import { short, whole } from "./figures.js";
import { Plot } from "./plots.js";
import { Series, restarts } from "./series.js";
import { ask, events, said } from "../stream.js";
import { Timelines } from "./timeline.js";

const LATE = 4000; // ms without a frame after which the display counts as old
const MOST_PAUSE = 8000; // ms between two attempts to reach the server

const PLOTS = [
  { title: "Throughput", unit: "tokens a second", least: 10, format: short,
    lines: [{ key: "generated", name: "generated" }, { key: "computed", name: "prompts" }] },
  { title: "Requests", unit: "number", least: 4, format: short,
    lines: [{ key: "running", name: "running" }, { key: "waiting", name: "waiting" }] },
  { title: "Time to first token", unit: "ms, last minute", least: 1, format: short,
    lines: [{ key: "ttft50", name: "p50" }, { key: "ttft95", name: "p95" }] },
  { title: "Time between tokens", unit: "ms, last minute", least: 1, format: short,
    lines: [{ key: "itl50", name: "p50" }, { key: "itl95", name: "p95" }] },
  { title: "KV cache", unit: "% of its blocks", least: 100, format: short,
    lines: [{ key: "used", name: "in use" }, { key: "cached", name: "cached" }] },
  { title: "Prefix cache hits", unit: "% of prompt tokens", least: 100, format: short,
    lines: [{ key: "hits", name: "hits" }] },
];

export class Live {
  #watching = null; // the AbortController of the feed
  #isShown = false;
  #looked = null;
  #heard = 0;

  // model: gives the model's name. refused: called with the error of a request.
  constructor(place, model, refused) {
    this.model = model;
    this.refused = refused;
    this.series = new Series();
    const look = (time) => {
      this.#looked = time;
      this.#draw();
    };
    this.plots = PLOTS.map((plot) => new Plot({ ...plot, look }));
    this.timelines = new Timelines();
    this.state = h("p", { class: "state", role: "status" });
    this.facts = h("dl", { class: "facts" });
    this.problem = h("p", { class: "problem", role: "alert", hidden: true });
    this.advice = h("p", { class: "hint", role: "note", hidden: true });
    place.append(
      h("div", { class: "row spread head" }, h("h2", { class: "hidden-label" }, "Live"), this.state),
      this.problem, this.facts, this.advice,
      h("div", { class: "plots" }, this.plots.map(({ element }) => element)),
      this.timelines.element);
    document.addEventListener("visibilitychange", () => this.#turn());
    setInterval(() => this.#checkAge(), 1000);
    this.#draw();
  }

  setShown(isShown) {
    this.#isShown = isShown;
    this.#turn();
  }

  // Starts again with the chosen model.
  restart() {
    this.#watching?.abort();
    this.#watching = null;
    this.series.clear();
    this.#turn();
    this.#draw();
  }

  #turn() {
    const isWanted = this.#isShown && !document.hidden && this.model() !== "";
    if (isWanted && this.#watching === null) {
      this.#watching = new AbortController();
      this.#watch(this.#watching.signal);
    } else if (!isWanted) {
      this.#watching?.abort();
      this.#watching = null;
    }
  }

  async #watch(signal) {
    let pause = 500;
    while (!signal.aborted) {
      try {
        const path = `live?model=${encodeURIComponent(this.model())}${this.#after()}`;
        for await (const frame of events(await ask(path, { signal }), { hasEnd: false })) {
          if (signal.aborted) return;
          pause = 500;
          this.#take(frame);
        }
        await wait(50, signal); // the server ends each feed after some time; the page then asks again
      } catch (error) {
        if (signal.aborted) return;
        this.#lost(error);
        if (error.status === 401) return;
        await wait(pause, signal);
        pause = Math.min(2 * pause, MOST_PAUSE);
      }
    }
  }

  #after() {
    const serial = this.series.last?.serial;
    return serial === undefined ? "" : `&after=${serial}`;
  }

  #take(frame) {
    this.#heard = performance.now();
    this.series.add(frame);
    tell(this.problem, "");
    tell(this.advice, frame.advice ? capital(frame.advice) : "");
    const { status, reason } = frame.health;
    this.state.dataset.status = status;
    this.state.textContent = status === "ready" ? capital(reason) : `${capital(status)}: ${reason}`;
    this.#draw();
  }

  #lost(error) {
    this.state.dataset.status = "gone";
    this.state.textContent = "No connection";
    tell(this.problem, `${capital(said(error))}. This page tries again by itself.`);
    this.refused(error);
    if (error.status === 401) {
      this.#watching = null;
      tell(this.problem, "The key is not known here.");
    }
  }

  #checkAge() {
    if (this.#watching === null || this.#heard === 0) return;
    const isOld = performance.now() - this.#heard > LATE;
    if (isOld && this.state.dataset.status === "ready") {
      this.state.dataset.status = "late";
      this.state.textContent = "No news for some seconds";
    }
  }

  #draw() {
    if (!this.#isShown) return;
    const { points, marks, requests, last } = this.series;
    const now = last?.time ?? points.at(-1)?.time ?? 0;
    for (const plot of this.plots) plot.draw({ points, marks, now, at: this.#looked });
    this.timelines.draw(requests, now);
    this.#drawFacts(points.at(-1));
  }

  #drawFacts(point) {
    show(this.facts, point !== undefined);
    if (point === undefined) return;
    const { counts, steps, step, rows } = point;
    const optional = (value) => (value === null ? "–" : short(value));
    const facts = [
      ["completed", whole(counts.completed)],
      ["cancelled", whole(counts.cancelled + counts.expired)],
      ["failed", whole(counts.failed), counts.failed > 0],
      ["rejected", whole(counts.rejected), counts.rejected > 0],
      ["preemptions", whole(counts.preemptions)],
      ["restarts", whole(restarts(counts)), restarts(counts) > 0],
      ["steps a second", optional(steps)],
      ["ms a step", optional(step)],
      ["rows a step", optional(rows)],
      ["drafts accepted", counts.proposed_tokens ? `${short((100 * counts.accepted_tokens) / counts.proposed_tokens)} %` : "–"],
    ];
    this.facts.replaceChildren(...facts.map(([name, figure, isNotable]) =>
      h("div", { class: isNotable ? "notable" : null }, h("dt", {}, name), h("dd", { class: "figure" }, figure))));
  }
}

const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

const wait = (ms, signal) =>
  new Promise((done) => {
    const timer = setTimeout(done, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), done()), { once: true });
  });
