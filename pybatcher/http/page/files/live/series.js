// Turns frames of the live view into points of plots: rates, shares and times of two minutes.

export const SPAN = 120; // seconds
const RATE_SPAN = 2; // seconds over which a rate is taken
const HIT_SPAN = 30;
const MOST_REQUESTS = 16;

export class Series {
  constructor() {
    this.clear();
  }

  clear() {
    this.points = [];
    this.requests = [];
    this.marks = []; // times of restarts
    this.last = null; // frame
  }

  // The first frame of a feed has what happened before it.
  add({ history, ...frame }) {
    if (history !== undefined) {
      this.clear();
      for (const past of history) this.#add({ ...past, ended: [] });
    }
    this.#add(frame);
  }

  #add(frame) {
    const { counts, time } = frame;
    const before = this.points.at(-1);
    if (before && (time <= before.time || isAnother(counts, before.counts))) this.clear();
    this.last = frame;
    this.requests = [...frame.ended.toReversed(), ...this.requests].slice(0, MOST_REQUESTS);
    if (counts === null) return;
    if (before && restarts(counts) > restarts(before.counts)) this.marks.push(time);
    this.points.push({ time, counts, ...this.#values(frame) });
    while (this.points[0].time < time - SPAN) this.points.shift();
    while (this.marks[0] < time - SPAN) this.marks.shift();
  }

  #values({ time, counts, ttft, itl, step }) {
    const since = (seconds) =>
      this.points.find((point) => point.time >= time - seconds - 0.1) ?? this.points.at(-1);
    const { time: began = time, counts: old = counts } = since(RATE_SPAN) ?? {};
    const { counts: older = counts } = since(HIT_SPAN) ?? {};
    const rate = (of) => (time > began ? Math.max(of(counts) - of(old), 0) / (time - began) : null);
    const looked = counts.prompt_tokens - older.prompt_tokens;
    const blocks = counts.kv_total_blocks;
    const unused = counts.kv_free_blocks + counts.kv_cached_blocks;
    return {
      generated: rate((c) => c.generated_tokens),
      computed: rate((c) => c.prompt_tokens - c.cached_tokens),
      steps: rate((c) => c.steps),
      running: counts.running,
      waiting: counts.queued,
      ttft50: ms(ttft?.p50),
      ttft95: ms(ttft?.p95),
      itl50: ms(itl?.p50),
      itl95: ms(itl?.p95),
      used: blocks ? (100 * (blocks - unused)) / blocks : null,
      cached: blocks ? (100 * counts.kv_cached_blocks) / blocks : null,
      hits: looked > 0 ? (100 * (counts.cached_tokens - older.cached_tokens)) / looked : null,
      step: ms(step?.seconds),
      rows: step === null ? null : step.decode_rows + step.prefill_rows + step.draft_rows,
    };
  }
}

export const restarts = (counts) => counts.restarts + (counts.worker_restarts ?? 0);

// Returns whether the server restarted: counts of one server never fall.
const isAnother = (counts, before) => counts !== null && counts.steps < before.steps;

const ms = (seconds) => (seconds === undefined || seconds === null ? null : 1000 * seconds);
