/** Arithmetic of the loss curve, apart from its drawing. */
export interface Point {
  x: number;
  y: number;
}

/** About `wanted` round numbers from `low` to `high`. */
export function ticks(low: number, high: number, wanted: number): number[] {
  const span = high - low;
  if (!(span > 0)) return [low];
  const rough = span / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = ([1, 2, 5].find((factor) => factor * power >= rough) ?? 10) * power;
  const first = Math.ceil(low / step);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, index) => (first + index) * step);
}

/**
 * At most two points (the lowest and the highest) for each of `buckets` equal parts of the list:
 * a curve of a million steps keeps its spikes and stays quick to draw.
 */
export function thin(points: readonly Point[], buckets: number): Point[] {
  if (points.length <= 2 * buckets) return [...points];
  const kept: Point[] = [];
  for (let bucket = 0; bucket < buckets; bucket += 1) {
    const start = Math.floor((bucket * points.length) / buckets);
    const part = points.slice(start, Math.floor(((bucket + 1) * points.length) / buckets));
    const low = part.reduce((a, b) => (b.y < a.y ? b : a));
    const high = part.reduce((a, b) => (b.y > a.y ? b : a));
    kept.push(...(low === high ? [low] : low.x < high.x ? [low, high] : [high, low]));
  }
  return kept;
}
