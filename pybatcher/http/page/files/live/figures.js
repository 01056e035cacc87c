// Formats numbers for people.

export const whole = (n) => Math.round(n).toLocaleString("en");

// Returns a number with its significant digits: 0.42, 4.2, 42, 4,200.
export function short(n) {
  const size = Math.abs(n);
  if (size === 0 || size >= 100) return whole(n);
  return size >= 10 ? String(Number(n.toFixed(1))) : String(Number(n.toFixed(2)));
}

export function duration(seconds, digits = 1) {
  if (seconds < 1 && digits > 0) return `${short(1000 * seconds)} ms`;
  if (seconds < 100) return `${seconds.toFixed(digits)} s`;
  return `${Math.floor(seconds / 60)} min`;
}
