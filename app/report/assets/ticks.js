"use strict";
/** Round values on an axis from `low` to `high`: at most `most` (5 or more), at least two where low < high. */
function ticks(low, high, isLog, most) {
  if (!(high > low)) return [low];
  const powers = isLog && low > 0 ? decades(low, high, most) : [];
  if (powers.length > 2) return powers;
  const raw = (high - low) / most, power = 10 ** Math.floor(Math.log10(raw));
  for (const step of [1, 2, 5, 10, 20].map((factor) => factor * power)) {
    const first = Math.ceil(low / step - 1e-9), last = Math.floor(high / step + 1e-9);
    if (last - first >= most) continue;
    const values = Array.from({ length: last - first + 1 }, (_, place) => rounded((first + place) * step));
    const within = values.filter((value) => value >= low && value <= high);
    return new Set(within).size > 1 ? [...new Set(within)] : [low, high];
  }
  return [low, high];
}

/** 1, 2 and 5 times the powers of ten, or the powers, or every second one, third one, ...: what does not crowd. */
function decades(low, high, most) {
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
  for (const factors of [[1, 2, 5], [1]]) {
    for (let stride = 1; stride === 1 || (factors.length === 1 && stride <= last - first + 1); stride++) {
      const values = [];
      for (let power = Math.ceil(first / stride) * stride; power <= last; power += stride) {
        values.push(...factors.map((factor) => Number(`${factor}e${power}`)));
      }
      const within = values.filter((value) => value >= low && value <= high);
      if (within.length <= most) return within;
    }
  }
  return [];
}

const rounded = (value) => Number(value.toPrecision(15));

const UNITS = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

/** The texts of ticks, all different, with a proper minus: of one unit where they are equally far apart. */
function tickTexts(values) {
  const sizes = values.map(Math.abs), largest = Math.max(...sizes);
  const gap = Math.min(...values.slice(1).map((value, place) => value - values[place]));
  const smallest = Math.min(...sizes.filter((size) => size > 0));
  const isSpread = values.length > 1 && smallest < largest / 50 && gap < largest / 50;  // of a logarithmic axis
  const texts = values.map((value) => isSpread ? tickText(value, Math.abs(value), Math.abs(value) / 2)
                                               : tickText(value, largest, Number.isFinite(gap) ? gap : largest / 1e3));
  const isEnough = new Set(texts).size === values.length;
  return (isEnough ? texts : values.map(String)).map((text) => text.replaceAll("-", "−"));
}

/** One value in the unit of `largest`, with the decimals that `gap` takes. */
function tickText(value, largest, gap) {
  if (value === 0) return "0";
  if (largest < 1e-3 || largest >= 1e16) {
    const digits = Math.max(0, Math.floor(Math.log10(Math.abs(value)) + 1e-9) - Math.floor(Math.log10(gap) + 1e-9));
    return plain(value.toExponential(Math.min(digits, 15)));
  }
  const [unit, name] = UNITS.find(([size]) => largest >= (size === 1e3 ? 1e4 : size)) ?? [1, ""];
  const decimals = Math.max(0, -Math.floor(Math.log10(gap / unit) + 1e-9));
  return plain((value / unit).toFixed(Math.min(decimals, 20))) + name;
}

/** A number without the zeros at its end. */
const plain = (text) => text.replace(/(\.\d*?)0+(?=e|$)/, "$1").replace(/\.(?=e|$)/, "");
