"use strict";
// The timelines: bars of every lane, drawn as bins while there are many in view and one by one when there are few.

const MOST_SHAPES = 2500; // bars drawn one by one; more are binned
const LEVELS = 8; // heights that a bin can have
const MOST_BINS = 14000; // rows times bins: with more, drawing them takes too long
const LEAST_RECONSTRUCTED = 0.005; // share of the window: a row with only less of it, and from counters, is not shown
const PIXELS = LEVELS + 2; // of a row, with a blank one on either side

function textOfTime(ns) {
  const size = Math.abs(ns);
  const [scale, unit] = size < 1e3 ? [1, "ns"] : size < 1e6 ? [1e3, "us"] : size < 1e9 ? [1e6, "ms"] : [1e9, "s"];
  return `${Number((ns / scale).toPrecision(4))} ${unit}`;
}

function textOfBytes(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  const power = bytes < 1024 ? 0 : Math.min(Math.floor(Math.log(bytes) / Math.log(1024)), units.length - 1);
  return `${power ? (bytes / 1024 ** power).toPrecision(3) : bytes} ${units[power]}`;
}

// Plotly reads a few tags in its labels: a recorded path must not become one.
function plain(text) {
  return text.replace(/[&<>]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" })[c]);
}

function unpackTrack(track) {
  let at = 0;
  const start = Float64Array.from(track.start, (gap) => (at += gap));
  const end = start.map((time, i) => time + track.length[i]);
  let longest = 0;
  const reach = end.map((time) => (longest = Math.max(longest, time)));
  return { ...track, start, end, reach };
}

function firstAfter(values, limit) {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= limit) low = middle + 1;
    else high = middle;
  }
  return low;
}

// How many levels each part of a bin gets: its share of them, at least one, all together at most LEVELS.
function heights(parts) {
  const found = parts.map(({ share }) => Math.max(Math.round(share * LEVELS), 1));
  while (found.reduce((sum, height) => sum + height) > LEVELS && Math.max(...found) > 1) {
    found[found.indexOf(Math.max(...found))]--;
  }
  return found.map((height, place) => (place < LEVELS ? height : 0));
}

class TimelineView {
  constructor(key, data, colours) {
    this.key = key;
    this.data = data;
    this.colours = colours;
    this.tracks = data.tracks.map(unpackTrack);
    this.rankOf = data.rows.map((name) => Number(name.slice(1).split(" ")[0]));
    this.isLane = data.lanes;
    this.place = document.getElementById(`timeline-${key}`);
    this.status = document.getElementById(`timeline-${key}-status`);
  }

  // Indices [first, last) of the bars of a track that may reach into the window.
  within(track, from, until) {
    return [firstAfter(track.reach, from), firstAfter(track.start, until)];
  }

  shown() {
    return this.tracks.filter((track) => !state.hidden.has(track.kind) && state.hasRank(this.rankOf[track.row]));
  }

  // Whether the filter of files leaves a bar; one of several files is left out.
  passes(track, i) {
    if (!state.filtersFiles || !this.isLane[track.row]) return true;
    return Boolean(track.file) && track.file[i] >= 0 && state.hasFile(this.data.files[track.file[i]]);
  }

  // Bars by track that are to be drawn in the window, as [track, indices], and the rows that they are in.
  visible([from, until]) {
    const found = this.shown().map((track) => {
      const [first, last] = this.within(track, from, until);
      const indices = [];
      for (let i = first; i < last; i++) if (track.end[i] >= from && this.passes(track, i)) indices.push(i);
      return [track, indices];
    }).filter(([, indices]) => indices.length);
    const seen = found.filter(([track, indices]) => track.kind !== "reconstructed" ||
      indices.reduce((sum, i) => sum + track.length[i], 0) >= LEAST_RECONSTRUCTED * (until - from));
    const rows = [...new Set(seen.map(([track]) => track.row))].sort((a, b) => a - b);
    return { found: found.filter(([track]) => rows.includes(track.row)), rows, bars: found.reduce((sum, [, indices]) => sum + indices.length, 0) };
  }

  label(track, i) {
    const count = track.operations ? track.operations[i] : 1;
    const span = track.kind === "step" ? "step" : this.isLane[track.row] ? "operation" : "stretch";
    const lines = [`<b>${track.kind}</b>, ${plain(this.data.rows[track.row])}`];
    const offset = track.offset ? track.offset[i] : -1;
    if (span === "step" && offset >= 0) lines.push(`step ${offset}`);
    else if (count > 1) {
      const busy = this.busy(track, i) / Math.max(track.length[i], 1);
      lines.push(`${count.toLocaleString("en")} ${span === "stretch" ? "stretches" : span + "s"} joined, ` +
        `${(100 * busy).toFixed(1)} % busy`);
    } else if (span === "operation") lines.push("1 operation");
    lines.push(`from ${(track.start[i] / NS).toFixed(9)} s, for ${textOfTime(track.length[i])}`);
    if (track.bytes) {
      lines.push(textOfBytes(track.bytes[i]) + (offset >= 0 ? ` at offset ${offset.toLocaleString("en")}` : ""));
    }
    if (track.file) {
      const path = track.file[i] < 0 ? "several files" : this.data.files[track.file[i]];
      lines.push(plain(path));
    }
    return lines.join("<br>");
  }

  busy(track, i) {
    return Math.max(track.length[i] - (track.idle ? track.idle[i] : 0), 0);
  }

  bars({ found, rows }) {
    return found.map(([track, indices]) => {
      const trace = {
        type: "bar", orientation: "h", name: track.kind, base: [], x: [], y: [], hovertext: [], width: [],
        hovertemplate: "%{hovertext}<extra></extra>", showlegend: false,
        marker: { color: this.colours[track.kind], line: { width: 0.5, color: this.colours[track.kind] } },
      };
      const place = rows.indexOf(track.row);
      for (const i of indices) {
        trace.base.push(track.start[i] / NS);
        trace.x.push(track.length[i] / NS);
        trace.y.push(place);
        trace.width.push(track.kind === "reconstructed" ? 0.4 : 0.8);
        trace.hovertext.push(this.label(track, i));
      }
      if (track.kind === "reconstructed") trace.marker.pattern = { shape: "/", size: 4 };
      return trace;
    });
  }

  // Each row of each bin filled with the kinds that its time was spent in, as high as their share of it.
  binned({ found: tracks, rows: shown }, [from, until], bins) {
    const width = (until - from) / bins;
    const kinds = Object.keys(this.colours);
    const rows = shown.length;
    const found = Array.from({ length: rows }, () => Array.from({ length: bins }, () => []));
    for (const [track, indices] of tracks) {
      const busy = new Float64Array(bins);
      const count = new Float64Array(bins);
      const bytes = new Float64Array(bins);
      for (const i of indices) this.spread(track, i, from, width, busy, count, bytes);
      for (let bin = 0; bin < bins; bin++) {
        if (!busy[bin] && !count[bin]) continue;
        found[shown.indexOf(track.row)][bin].push({
          track, share: Math.min(busy[bin] / width, 1), count: count[bin], bytes: Math.round(bytes[bin]),
        });
      }
    }
    const x = Array.from({ length: bins + 1 }, (_, bin) => (from + bin * width) / NS);
    const z = Array.from({ length: rows * PIXELS }, () => new Array(bins).fill(null));
    const text = z.map(() => new Array(bins).fill(""));
    found.forEach((row, place) => row.forEach((parts, bin) => {
      if (!parts.length) return;
      const words = this.words(shown[place], x[bin], width, parts);
      let pixel = (place + 1) * PIXELS - 2;
      heights(parts).forEach((height, part) => {
        for (let level = 0; level < height; level++, pixel--) z[pixel][bin] = kinds.indexOf(parts[part].track.kind);
      });
      for (let line = place * PIXELS; line < (place + 1) * PIXELS; line++) text[line][bin] = words;
    }));
    const colorscale = kinds.flatMap((kind, place) =>
      [place, place + 1].map((at) => [at / kinds.length, this.colours[kind]]));
    return [{
      type: "heatmap", x, y0: -0.5 + 0.5 / PIXELS, dy: 1 / PIXELS, z, zmin: -0.5, zmax: kinds.length - 0.5, text, colorscale,
      showscale: false, hoverongaps: false, hovertemplate: "%{text}<extra></extra>",
    }];
  }

  words(row, start, width, parts) {
    const lines = parts.map(({ track, share, count, bytes }) => {
      const begun = this.isLane[track.row] ? `, ${count.toLocaleString("en")} begun` : "";
      const moved = bytes ? `, ${textOfBytes(bytes)}` : "";
      return `${track.kind}: ${Number((100 * share).toPrecision(3))} % of the time${begun}${moved}`;
    });
    const where = `<b>${plain(this.data.rows[row])}</b>, ${start.toFixed(6)} s and ${textOfTime(width)} on`;
    return [where, ...lines].join("<br>");
  }

  spread(track, i, from, width, busy, count, bytes) {
    const bins = busy.length;
    const start = track.start[i];
    const length = track.length[i];
    const begun = Math.floor((start - from) / width);
    if (begun >= 0 && begun < bins) count[begun] += track.operations ? track.operations[i] : 1;
    const amount = track.bytes ? track.bytes[i] : 0;
    const low = Math.max(begun, 0);
    const high = Math.min(Math.max(Math.ceil((track.end[i] - from) / width), begun + 1), bins);
    const share = length ? this.busy(track, i) / length : 0;
    for (let bin = low; bin < high; bin++) {
      const edge = from + bin * width;
      const covered = Math.max(Math.min(track.end[i], edge + width) - Math.max(start, edge), 0);
      busy[bin] += covered * share;
      bytes[bin] += length ? (amount * covered) / length : amount;
    }
  }

  layout(theme, rows) {
    const names = rows.map((row) => this.data.rows[row]);
    return themed({
      height: 100 + Math.max(rows.length * 20, 60), barmode: "overlay", bargap: 0, dragmode: "zoom", hovermode: "closest",
      xaxis: { title: { text: this.data.axis }, range: state.window.map((time) => time / NS) },
      yaxis: {
        tickvals: names.map((_, place) => place), ticktext: names, range: [Math.max(rows.length, 1) - 0.4, -0.6],
        fixedrange: true, tickfont: { size: 10 },
      },
      shapes: this.borders(theme, rows),
      margin: { l: Math.max(14 + 6 * Math.max(...names.map((name) => name.length), 4), 76), r: 14, t: 34, b: 45 },
    }, theme);
  }

  // A line where the rows of another rank begin.
  borders(theme, rows) {
    const first = rows.map((_, place) => place)
      .filter((place) => place && this.rankOf[rows[place]] !== this.rankOf[rows[place - 1]]);
    return first.map((place) => ({
      type: "line", xref: "paper", x0: 0, x1: 1, y0: place - 0.5, y1: place - 0.5, line: { width: 1, color: theme.line },
    }));
  }

  draw() {
    const [from, until] = state.window;
    const visible = this.visible(state.window);
    const single = visible.bars <= MOST_SHAPES;
    const room = Math.min(this.place.clientWidth / 3, MOST_BINS / Math.max(visible.rows.length, 1), 400);
    const bins = Math.max(Math.round(room), 60);
    this.mode = single ? "bars" : "bins";
    this.status.textContent = this.sentence(from, until, visible, single ? 0 : bins);
    const layout = this.layout(theme(), visible.rows);
    this.place.style.height = `${layout.height}px`; // else a resize of the window takes the container's
    const traces = single ? this.bars(visible) : this.binned(visible, state.window, bins);
    return Plotly.react(this.place, traces, layout, CONFIG);
  }

  sentence(from, until, { bars, rows }, bins) {
    const view = `${(from / NS).toFixed(6)} to ${(until / NS).toFixed(6)} s (${textOfTime(until - from)}): `;
    const count = bars.toLocaleString("en");
    const drawn = bins
      ? `${count} bars in bins of ${textOfTime((until - from) / bins)}; zoom in for single ones`
      : `${count} bars, drawn one by one`;
    const left = this.data.rows.length - rows.length;
    const without = left ? `; ${left} rows with next to no bars are not shown` : "";
    const several = state.filtersFiles ? "; bars of several files joined are left out by the filter of files" : "";
    return `${view}${drawn}${without}${several}`;
  }
}
