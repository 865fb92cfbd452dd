// What the page does when it is opened: unpack its data, draw, sort tables, follow the theme and the printer.

// Buttons by name: what plotly offers besides would send the chart to a server.
const BUTTONS = [["toImage"], ["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]];
const CONFIG = {
  displaylogo: false, responsive: true, modeBarButtons: BUTTONS, showSendToCloud: false, plotlyServerURL: "",
};
const views = [];
let figures = {};

async function unpacked(id) {
  const packed = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

function run(code) {
  const script = document.createElement("script");
  script.nonce = document.currentScriptNonce;
  script.textContent = code;
  document.head.append(script);
}

let printing = false;
const PAPER_WIDTH = 690; // pixels that A4 and letter have between their margins

function theme() {
  const dark = !printing && window.matchMedia("(prefers-color-scheme: dark)").matches;
  return dark
    ? { ink: "#e6e6e6", grid: "#3a3f45", line: "#6b7178", hover: "#24292f" }
    : { ink: "#1c1f23", grid: "#e3e5e8", line: "#9aa0a6", hover: "#ffffff" };
}

function themed(layout, colours) {
  const axis = { gridcolor: colours.grid, linecolor: colours.line, zeroline: false, tickcolor: colours.line };
  const result = {
    margin: { l: 76, r: 14, t: 34, b: 48 }, ...layout,
    width: printing ? PAPER_WIDTH : undefined, autosize: !printing,
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: colours.ink, size: 12, family: "system-ui, sans-serif" },
    hoverlabel: { bgcolor: colours.hover, bordercolor: colours.line, font: { color: colours.ink }, align: "left" },
    modebar: { color: colours.line, activecolor: colours.ink, bgcolor: "rgba(0,0,0,0)" },
  };
  for (const name of Object.keys(result)) if (/^[xy]axis/.test(name)) result[name] = { ...axis, ...result[name] };
  return result;
}

function drawFigure(name) {
  const place = document.getElementById(name);
  const figure = figures[name];
  const layout = themed(structuredClone(figure.layout), theme());
  place.style.height = `${layout.height}px`;
  const drawn = Plotly.react(place, figure.data, layout, CONFIG);
  if (place.dataset.linked) return drawn;
  place.dataset.linked = "1";
  if (name.startsWith("course")) {
    place.on("plotly_relayout", (event) => followed(event, name.slice("course-".length)));
  }
  return drawn;
}

// A zoom of the user in a timeline or its curves: the others of the same times follow.
function followed(event, key) {
  if (event["xaxis.autorange"]) {
    showAll();
    return;
  }
  const range = event["xaxis.range"] || [event["xaxis.range[0]"], event["xaxis.range[1]"]];
  if (range[0] === undefined) return;
  showTimes(range[0] * NS, range[1] * NS, key);
}

function showTimes(from, until, key) {
  for (const view of views) {
    if (view.key === key || linked) view.show(from, until);
  }
  followCurves();
}

function showAll() {
  for (const view of views) view.show(view.data.from_ns, view.data.until_ns);
  followCurves();
}

let linked = false;

function followCurves() {
  for (const view of views) {
    const name = `course-${view.key}`;
    if (!figures[name]) continue;
    figures[name].layout.xaxis.range = view.window.map((time) => time / NS);
    drawFigure(name);
  }
}

function zoomControls() {
  const controls = document.getElementById("timeline-controls");
  controls.addEventListener("click", (event) => {
    const { zoom, window: named } = event.target.dataset;
    if (zoom === "all") showAll();
    else if (zoom) {
      const [scale, move] = { in: [0.25, 0], out: [4, 0], left: [1, -0.5], right: [1, 0.5] }[zoom];
      for (const view of views) {
        const [from, until] = view.window;
        const middle = (from + until) / 2 + move * (until - from);
        const half = ((until - from) * scale) / 2;
        view.show(middle - half, middle + half);
      }
      followCurves();
    } else if (named) {
      for (const view of views) {
        const found = view.data.windows.find((window) => window.name === named);
        if (found) view.show(found.from_ns, found.until_ns);
      }
      followCurves();
    }
  });
  document.getElementById("timeline-legend").addEventListener("change", (event) => {
    for (const view of views) {
      if (event.target.checked) view.hidden.delete(event.target.dataset.kind);
      else view.hidden.add(event.target.dataset.kind);
      view.draw();
    }
  });
}

function chartControls() {
  for (const controls of document.querySelectorAll(".controls[data-for]")) {
    const name = controls.dataset.for;
    controls.addEventListener("click", (event) => {
      if (event.target.dataset.log === undefined) return;
      const on = event.target.getAttribute("aria-pressed") !== "true";
      event.target.setAttribute("aria-pressed", String(on));
      const { layout } = figures[name];
      const axis = layout.yaxis;
      if (on) axis.linear = axis.range;
      axis.type = on ? "log" : "linear";
      axis.range = on ? undefined : axis.linear;
      axis.autorange = axis.range === undefined;
      drawFigure(name);
    });
    controls.addEventListener("change", (event) => {
      if (event.target.dataset.quantity === undefined) return;
      figures[name].data.forEach((trace, place) => { trace.visible = place === Number(event.target.value); });
      drawFigure(name);
    });
  }
}

function sortTable(head) {
  const row = head.parentElement;
  const place = [...row.children].indexOf(head);
  const down = head.getAttribute("aria-sort") !== "descending";
  for (const other of row.children) other.setAttribute("aria-sort", "none");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const body = head.closest("table").tBodies[0];
  const value = (line) => {
    const cell = line.children[place];
    return cell.dataset.v === undefined ? (cell.className === "number" ? null : cell.textContent) : Number(cell.dataset.v);
  };
  const order = (a, b) => (typeof a === "string" ? b.localeCompare(a, "en") : b - a);
  const lines = [...body.rows].map((line) => [value(line), line]);
  lines.sort(([a], [b]) => (a === null || b === null ? (a === null) - (b === null) : down ? order(a, b) : order(b, a)));
  body.append(...lines.map(([, line]) => line));
}

function redraw() {
  for (const view of views) view.draw();
  for (const name of Object.keys(figures)) drawFigure(name);
}

function forPrinting(on) {
  printing = on;
  redraw();
}

async function begin(nonce) {
  document.currentScriptNonce = nonce;
  for (const button of document.querySelectorAll("table.sortable th button")) {
    button.addEventListener("click", () => sortTable(button.parentElement));
  }
  const [code, text] = await Promise.all([unpacked("plotly"), unpacked("data")]);
  run(code);
  const data = JSON.parse(text);
  figures = data.figures;
  linked = data.linked;
  for (const [key, timeline] of Object.entries(data.timelines)) {
    const view = new TimelineView(key, timeline, data.colours);
    views.push(view);
    await view.draw();
    view.place.on("plotly_relayout", (event) => followed(event, key));
  }
  zoomControls();
  chartControls();
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  window.addEventListener("beforeprint", () => forPrinting(true));
  window.addEventListener("afterprint", () => forPrinting(false));
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
  for (const name of Object.keys(figures)) {
    await new Promise((resume) => setTimeout(resume)); // the page can be used meanwhile
    await drawFigure(name);
  }
  document.documentElement.dataset.complete = String(Math.round(performance.now()));
}

begin(document.currentScript.nonce).catch((error) => {
  const trouble = document.getElementById("trouble");
  trouble.hidden = false;
  trouble.textContent = `The pictures could not be drawn (${error}); they need a browser of 2023 or later.`;
  console.error(error);
});
