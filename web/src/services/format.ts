/** Numbers and times in words. */

export function seconds(value: number): string {
  if (value >= 3600) return `${(value / 3600).toFixed(1)} h`;
  if (value >= 60) return `${(value / 60).toFixed(1)} min`;
  if (value >= 1) return `${value.toFixed(1)} s`;
  return `${Math.round(value * 1000)} ms`;
}

/** Whole seconds, minutes or hours since a moment, both in milliseconds. */
export function age(sinceMs: number, nowMs: number): string {
  const passed = Math.max(0, Math.round((nowMs - sinceMs) / 1000));
  if (passed < 120) return `${passed} s`;
  if (passed < 7200) return `${Math.round(passed / 60)} min`;
  return `${Math.round(passed / 3600)} h`;
}

const UNITS = ["B", "kB", "MB", "GB", "TB"] as const;

export function bytes(value: number): string {
  const power = value < 1 ? 0 : Math.min(UNITS.length - 1, Math.floor(Math.log10(value) / 3));
  const digits = power === 0 ? 0 : 1;
  return `${(value / 1000 ** power).toFixed(digits)} ${UNITS[power] ?? "B"}`;
}

export function percent(share: number): string {
  return `${(share * 100).toFixed(1)} %`;
}

export function count(value: number): string {
  return Math.round(value).toLocaleString("en");
}

export function clock(time: string): string {
  return new Date(time).toLocaleTimeString("en-GB");
}

/** "layer 3", or "layers 3–7", counted from the embedding (0). */
export function layers(first: number, number: number): string {
  return number === 1 ? `layer ${first}` : `layers ${first}–${first + number - 1}`;
}
