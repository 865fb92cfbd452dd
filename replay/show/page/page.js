"use strict";
// Unpacks plotly and the data that the page carries, draws its charts, and follows the reader's window of time, filters,
// theme and printer. The view is in the fragment of the address, so that a link leads to it.

const NS = 1e9;
const SHORTEST_NS = 100; // that can be zoomed to
const PAPER_WIDTH = 690; // pixels that A4 and letter have between their margins
const NARROW = 600; // pixels: below, legends take several lines
// Of plotly's buttons one: others would send the chart to a server, or do what the page's controls do.
const CONFIG = { displaylogo: false, responsive: true, doubleClick: "autosize", modeBarButtons: [["toImage"]] };
const nonce = document.currentScript.nonce;
const view = { window: [], ranks: "", files: "", hide: new Set() };
let page = null;
let printing = false;

const byId = (id) => document.getElementById(id);
const all = (selector, root = document) => [...root.querySelectorAll(selector)];

async function unpacked(id) {
  const packed = Uint8Array.from(atob(byId(id).textContent), (c) => c.charCodeAt(0));
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

function textOfTime(ns) {
  const size = Math.abs(ns);
  const [scale, unit] = size < 1e3 ? [1, "ns"] : size < 1e6 ? [1e3, "us"] : size < 1e9 ? [1e6, "ms"] : [1e9, "s"];
  return `${Number((ns / scale).toPrecision(4))} ${unit}`;
}

function textOfBytes(bytes) {
  const power = bytes < 1024 ? 0 : Math.min(Math.floor(Math.log2(bytes) / 10), 5);
  return `${power ? (bytes / 1024 ** power).toPrecision(3) : bytes} ${["B", "KiB", "MiB", "GiB", "TiB", "PiB"][power]}`;
}

// Pairs [first, last] of a list such as "0-3,8"; null for all, also where the text is no list of ranks.
function chosenRanks() {
  const parts = view.ranks.split(",").map((part) => part.trim()).filter(Boolean);
  const found = parts.map((part) => /^(\d+)(?:\s*[-–]\s*(\d+))?$/.exec(part));
  return !parts.length || found.includes(null) ? null : found.map((match) => [Number(match[1]), Number(match[2] ?? match[1])]);
}

function hasRank(first, last = first) {
  const ranks = chosenRanks();
  return ranks === null || ranks.some(([low, high]) => low <= last && high >= first);
}

const hasFile = (path) => path.toLowerCase().includes(view.files.trim().toLowerCase());

// ---------------------------------------------------------------------------------------------------------------- charts

function themed(layout) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name, onPaper) => (printing ? onPaper : style.getPropertyValue(name).trim());
  const [ink, line, soft] = [colour("--ink", "#000"), colour("--line", "#bbb"), colour("--soft", "#fff")];
  const axis = { gridcolor: line, linecolor: line, zeroline: false, tickcolor: line };
  const above = layout.legend?.y > 1;
  const narrow = above && !printing && window.innerWidth < NARROW;
  const result = {
    margin: { l: layout.meta?.time ? page.left : 84, r: 14, t: narrow ? 80 : above ? 40 : 26, b: 48 }, ...layout,
    width: printing ? PAPER_WIDTH : undefined, autosize: !printing, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: ink, size: 12, family: "system-ui, sans-serif" },
    hoverlabel: { bgcolor: soft, bordercolor: line, font: { color: ink }, align: "left" },
    modebar: { color: line, activecolor: ink, bgcolor: "rgba(0,0,0,0)" },
  };
  if (narrow) result.legend = { ...result.legend, y: 1.1 };
  for (const name of Object.keys(result)) {
    if (!/^[xy]axis/.test(name)) continue;
    const { title, tickangle } = result[name];
    result[name] = { ...axis, ...result[name], title: { font: { size: 12 }, ...title } };
    if (tickangle && window.innerWidth < NARROW && !printing) result[name].tickangle = -90;
  }
  return result;
}

function put(place, data, layout) {
  place.style.height = place.style.minHeight = `${layout.height}px`;
  return Plotly.react(place, data, layout, CONFIG);
}

const windowInSeconds = () => view.window.map((time) => time / NS);

function drawFigure(id) {
  const { data, layout } = page.figures[id];
  const choice = document.querySelector(`[data-choose="${id}"]`);
  const shape = structuredClone(layout);
  let traces = data;
  if (layout.meta.time) Object.assign(shape.xaxis, { range: windowInSeconds(), autorange: false });
  if (choice) {
    traces = data.filter(({ meta }) => meta === Number(choice.value)).map((trace) => ({ ...trace, visible: true }));
    Object.assign(shape.yaxis, layout.meta.axes?.[choice.value]);
  }
  if (traces[0]?.type === "heatmap") {
    const rows = traces[0].y.map((_, row) => row).filter((row) => hasRank(...traces[0].y[row].split("–").map(Number)));
    traces = [{ ...traces[0], y: rows.map((row) => traces[0].y[row]), z: rows.map((row) => traces[0].z[row]) }];
  }
  return put(byId(id), traces, themed(shape));
}

// -------------------------------------------------------------------------------------------------------------- timeline

function unpackTrack(track) {
  let at = 0;
  let longest = -Infinity;
  const start = Float64Array.from(track.start, (gap) => (at += gap));
  const end = start.map((time, i) => time + track.length[i]);
  return { ...track, start, end, reach: end.map((time) => (longest = Math.max(longest, time))) };
}

function firstAfter(values, limit) {
  let [low, high] = [0, values.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= limit) low = middle + 1;
    else high = middle;
  }
  return low;
}

// The bars of a track that reach into a stretch of time and pass the filter of files, which joined bars of several do not.
function barsWithin(line, track, from, until) {
  const found = [];
  for (let i = firstAfter(track.reach, from), last = firstAfter(track.start, until); i < last; i++) {
    const named = !view.files.trim() || !line.lanes[track.row] || (track.file?.[i] >= 0 && hasFile(line.files[track.file[i]]));
    if (named && track.end[i] >= from) found.push(i);
  }
  return found;
}

const busyShare = (track, i) => (track.idle && track.length[i] ? Math.max(1 - track.idle[i] / track.length[i], 0) : 1);

// The rows as a picture of `width` by `height`: each column is filled as high as the share of its time that was spent so.
function painted(line, rows, width, height) {
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  const pen = canvas.getContext("2d");
  const [from, until] = view.window;
  const size = height / rows.length;
  rows.forEach((row, place) => {
    const filled = new Float32Array(width);
    for (const track of line.tracks) {
      if (track.row !== row || view.hide.has(track.kind)) continue;
      const odd = new Float32Array(width); // every other step is paler, so that single ones show
      const share = new Float32Array(width);
      for (const i of barsWithin(line, track, from, until)) {
        const into = track.kind === "step" && track.offset?.[i] % 2 ? odd : share;
        const [low, high] = [track.start[i], track.end[i]].map((time) => Math.min(Math.max(((time - from) / (until - from)) * width, 0), width));
        const busy = busyShare(track, i);
        for (let column = Math.floor(low); column < Math.min(Math.max(high, low + 0.01), width); column++) {
          into[column] += Math.max(busy * (Math.min(high, column + 1) - Math.max(low, column)), 0.001);
        }
        if (high - low >= 4) into[Math.floor(low)] = 0; // a gap to the bar before
      }
      pen.fillStyle = page.colours[track.kind];
      for (const [part, alpha] of [[share, 1], [odd, 0.55]]) {
        pen.globalAlpha = alpha;
        for (let column = 0; column < width; column++) {
          if (!part[column]) continue;
          const most = track.kind === "reconstructed" ? 0.4 : 0.84;
          const filling = Math.min(Math.max(part[column], 0.25) * most, most - filled[column] * (most > 0.5));
          if (filling <= 0) continue;
          pen.fillRect(column, (place + 0.92 - filled[column] - filling) * size, 1, filling * size);
          filled[column] += filling;
        }
      }
    }
  });
  return canvas.toDataURL();
}

function rowsShown(line) {
  const used = new Set(line.tracks.filter(({ kind }) => !view.hide.has(kind)).map(({ row }) => row));
  return line.rows.map((_, row) => row).filter((row) => used.has(row) && hasRank(line.ranks[row]));
}

function drawTimeline(key) {
  const line = page.timelines[key];
  const place = byId(`timeline-${key}`);
  const rows = rowsShown(line);
  const names = rows.map((row) => line.rows[row]);
  const height = Math.max(rows.length, 1) * (rows.length > 24 ? 14 : 22);
  const layout = themed({
    height: height + 74, dragmode: "zoom", hovermode: false, meta: { time: true },
    xaxis: { title: { text: page.axis }, range: windowInSeconds() },
    yaxis: {
      tickvals: names.map((_, row) => row), ticktext: names, range: [rows.length - 0.5, -0.5], fixedrange: true, showgrid: false,
      tickfont: { size: rows.length > 24 ? 9 : 10 },
    },
  });
  const width = (printing ? PAPER_WIDTH : place.clientWidth) - layout.margin.l - layout.margin.r;
  const scale = Math.max(Math.ceil(window.devicePixelRatio || 1), 1);
  const source = painted(line, rows, Math.max(Math.round(width * scale), 1), height * scale);
  layout.images = [{ source, xref: "paper", yref: "paper", x: 0, y: 1, sizex: 1, sizey: 1, sizing: "stretch", layer: "above" }];
  layout.shapes = rows.map((_, row) => row).filter((row) => row && line.ranks[rows[row]] !== line.ranks[rows[row - 1]])
    .map((row) => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: row - 0.5, y1: row - 0.5, line: { width: 1, color: layout.font.color } }));
  return put(place, [], layout);
}

// What is at a place of the timeline, in lines of plain text.
function wordsAt(line, row, at, near) {
  const words = [line.rows[row]];
  for (const track of line.tracks) {
    if (track.row !== row || view.hide.has(track.kind)) continue;
    const bars = barsWithin(line, track, at - near, at + near);
    const count = bars.reduce((sum, i) => sum + (track.operations?.[i] ?? 1), 0);
    const bytes = bars.reduce((sum, i) => sum + (track.bytes?.[i] ?? 0), 0);
    const size = bytes ? `, ${textOfBytes(bytes)}` : "";
    if (bars.length === 1) {
      const [i] = bars;
      const number = track.offset?.[i] ?? -1;
      const name = track.kind === "step" && number >= 0 ? `step ${number}` : track.kind;
      const joined = count > 1 ? `${count.toLocaleString("en")} joined, ${(100 * busyShare(track, i)).toFixed(1)} % busy` : "";
      words.push(`${name} from ${(track.start[i] / NS).toFixed(6)} s, for ${textOfTime(track.length[i])}${size}`, joined);
      if (line.lanes[row] && number >= 0) words.push(`at offset ${number.toLocaleString("en")}`);
      if (track.file) words.push(track.file[i] < 0 ? "several files" : line.files[track.file[i]]);
    } else if (bars.length) words.push(`${count.toLocaleString("en")} of ${track.kind}${size}`);
  }
  return words.filter(Boolean);
}

function hover(event, key) {
  const [tip, line] = [byId("tip"), page.timelines[key]];
  const plot = document.querySelector(`#timeline-${key} .nsewdrag`).getBoundingClientRect();
  const rows = rowsShown(line);
  const row = rows[Math.floor(((event.clientY - plot.top) / plot.height) * rows.length)];
  const [from, until] = view.window;
  const at = from + ((event.clientX - plot.left) / plot.width) * (until - from);
  const words = row === undefined || at < from || at > until ? [] : wordsAt(line, row, at, (1.5 * (until - from)) / plot.width);
  tip.hidden = words.length < 2;
  tip.textContent = words.join("\n");
  tip.style.left = `${Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 4)}px`;
  tip.style.top = `${event.clientY + 16}px`;
}

// ---------------------------------------------------------------------------------------------------------------- tables

function sortTable(head) {
  const [row, down] = [head.parentElement, head.getAttribute("aria-sort") !== "descending"];
  const place = [...row.children].indexOf(head);
  for (const other of row.children) other.setAttribute("aria-sort", "none");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const value = ({ cells }) => {
    const { dataset, className, textContent } = cells[place];
    return dataset.v === undefined ? (className === "number" ? null : textContent) : Number(dataset.v);
  };
  const order = (a, b) => (typeof a === "string" ? b.localeCompare(a, "en") : b - a);
  const body = head.closest("table").tBodies[0];
  const lines = [...body.rows].map((line) => [value(line), line]);
  lines.sort(([a], [b]) => (a === null || b === null ? (a === null) - (b === null) : down ? order(a, b) : order(b, a)));
  body.append(...lines.map(([, line]) => line));
}

function filterTables() {
  for (const table of all("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
    const [rank, file] = [heads.indexOf("rank"), heads.indexOf("file")];
    for (const { cells } of table.tBodies[0].rows) {
      cells[0].parentElement.hidden = (rank >= 0 && !hasRank(Number(cells[rank].textContent))) ||
        (file >= 0 && !hasFile(cells[file].textContent));
    }
  }
}

// -------------------------------------------------------------------------------------------------------------- the view

const isHome = () => view.window.every((time, i) => time === page.home[i]);

function zoomTo(from, until) {
  const [first, last] = page.whole;
  const width = Math.min(Math.max(until - from, SHORTEST_NS), last - first);
  const middle = Math.min(Math.max((from + until) / 2, first + width / 2), last - width / 2);
  view.window = [middle - width / 2, middle + width / 2];
}

function draw() {
  for (const key of Object.keys(page.timelines)) drawTimeline(key);
  for (const id of Object.keys(page.figures)) drawFigure(id);
}

// After any change by the reader.
function changed() {
  const found = new URLSearchParams();
  if (!isHome()) found.set("t", view.window.map((time) => (time / NS).toFixed(9)).join(".."));
  for (const name of ["ranks", "files"]) if (view[name]) found.set(name, view[name]);
  if (view.hide.size) found.set("hide", [...view.hide].join(","));
  history.replaceState(null, "", found.size ? `#${found}` : location.pathname + location.search);
  shown();
}

function shown() {
  for (const name of ["ranks", "files"]) byId(`${name}-filter`).value = view[name];
  for (const box of all("[data-kind]")) box.checked = !view.hide.has(box.dataset.kind);
  const [from, until] = view.window;
  const words = [`Shown: ${(from / NS).toFixed(3)} to ${(until / NS).toFixed(3)} s, ${textOfTime(until - from)}.`];
  if (isHome() && page.home[0] > page.whole[0]) words.push(`Before it: ${textOfTime(page.home[0] - page.whole[0])} of start-up (zoom out).`);
  if (view.ranks && chosenRanks() === null) words.push("The filter of ranks is not a list such as 0-3,8: all ranks are shown.");
  if (view.ranks || view.files) words.push("Filters apply to the timeline, the heat map, and the rows of tables.");
  byId("window").textContent = words.join(" ");
  filterTables();
  draw();
}

function restore() {
  const found = new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
  const [from, until] = (found.get("t") || "").split("..").map((text) => parseFloat(text) * NS);
  view.window = page.home;
  if (from < until) zoomTo(from, until);
  for (const name of ["ranks", "files"]) view[name] = found.get(name) || "";
  view.hide = new Set((found.get("hide") || "").split(",").filter(Boolean));
  shown();
}

function controls() {
  byId("view").addEventListener("click", ({ target }) => {
    const { zoom, window: number, side } = target.dataset;
    const [from, until] = view.window;
    if (zoom === "home") view.window = page.home;
    else if (zoom) {
      const [scale, move] = { in: [0.25, 0], out: [4, 0], left: [1, -0.5], right: [1, 0.5] }[zoom];
      const middle = (from + until) / 2 + move * (until - from);
      zoomTo(middle - ((until - from) * scale) / 2, middle + ((until - from) * scale) / 2);
    } else if (number) zoomTo(page.timelines[side].windows[number].from_ns, page.timelines[side].windows[number].until_ns);
    else return;
    changed();
  });
  for (const name of ["ranks", "files"]) {
    byId(`${name}-filter`).addEventListener("input", ({ target }) => { view[name] = target.value; changed(); });
  }
  for (const box of all("[data-kind]")) {
    box.addEventListener("change", () => { view.hide[box.checked ? "delete" : "add"](box.dataset.kind); changed(); });
  }
  for (const choice of all("[data-choose]")) choice.addEventListener("change", () => drawFigure(choice.dataset.choose));
  for (const button of all("thead button")) button.addEventListener("click", () => sortTable(button.parentElement));
  for (const row of all("tr[data-from]")) {
    row.addEventListener("click", () => {
      zoomTo(Number(row.dataset.from), Number(row.dataset.until));
      changed();
      byId("timeline").scrollIntoView();
    });
  }
  for (const place of all(".chart")) {
    const timeline = place.id.startsWith("timeline-");
    if (timeline) {
      place.addEventListener("mousemove", (event) => hover(event, place.id.slice(9)));
      place.addEventListener("mouseleave", () => { byId("tip").hidden = true; });
    }
    // A zoom by the mouse in any chart of time: all others follow.
    if (timeline || page.figures[place.id].layout.meta.time) {
      place.on("plotly_relayout", (event) => {
        const range = event["xaxis.range"] || [event["xaxis.range[0]"], event["xaxis.range[1]"]];
        if (event["xaxis.autorange"]) view.window = page.home;
        else if (range[0] !== undefined) zoomTo(...range.map((time) => time * NS));
        else return;
        changed();
      });
    }
  }
  // Tables that reach beyond their place show it.
  const sideways = new ResizeObserver((entries) => {
    for (const { target } of entries) target.classList.toggle("sideways", target.scrollWidth > target.clientWidth + 1);
  });
  for (const place of all(".scroll")) sideways.observe(place);
}

async function begin() {
  const code = Object.assign(document.createElement("script"), { nonce, textContent: await unpacked("plotly") });
  document.head.append(code);
  page = JSON.parse(await unpacked("data"));
  for (const line of Object.values(page.timelines)) line.tracks = line.tracks.map(unpackTrack);
  // All charts of time have the same margin, so that equal times stand above each other.
  page.left = Math.max(...Object.values(page.timelines).flatMap(({ rows }) => rows).map((name) => 16 + 6 * name.length), 84);
  // A number stays on the line of its unit.
  for (const place of all("h1, main p")) {
    const texts = document.createTreeWalker(place, NodeFilter.SHOW_TEXT);
    for (let text; (text = texts.nextNode()); ) text.data = text.data.replace(/(\d) (?=%|([num]?s|[KMGT]?i?B)\b)/g, "$1\u00a0");
  }
  restore();
  controls();
  let width = window.innerWidth;
  window.addEventListener("resize", () => { if (width !== window.innerWidth) draw(); width = window.innerWidth; });
  window.addEventListener("hashchange", () => { if (location.hash.includes("=") || !location.hash) restore(); });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  window.addEventListener("beforeprint", () => { printing = true; draw(); });
  window.addEventListener("afterprint", () => { printing = false; draw(); });
  document.documentElement.dataset.complete = "yes";
}

begin().catch((error) => {
  byId("trouble").hidden = false;
  byId("trouble").textContent = `The charts could not be drawn (${error}); they need a browser of 2023 or later. The tables are whole.`;
  console.error(error);
});
