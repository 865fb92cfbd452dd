// Figures that the page carries ready to draw: their theme, their zoom, and what the filter of ranks leaves of them.

const CONFIG = {
  displaylogo: false, responsive: true, doubleClick: "autosize", showSendToCloud: false, plotlyServerURL: "",
  // Buttons by name: what plotly offers besides would send the chart to a server.
  modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
};
const PAPER_WIDTH = 690; // pixels that A4 and letter have between their margins
const NARROW = 600; // pixels: below, legends take several lines

let figures = {};
let steps = {};
let printing = false;

function theme() {
  const dark = !printing && window.matchMedia("(prefers-color-scheme: dark)").matches;
  return dark
    ? { ink: "#e6e6e6", grid: "#3a3f45", line: "#8a9199", hover: "#24292f" }
    : { ink: "#1c1f23", grid: "#e3e5e8", line: "#6b7178", hover: "#ffffff" };
}

function themed(layout, colours) {
  const axis = { gridcolor: colours.grid, linecolor: colours.line, zeroline: false, tickcolor: colours.line };
  const narrow = !printing && window.innerWidth < NARROW;
  const result = {
    margin: { l: 76, r: 14, t: narrow && layout.legend?.y > 1 ? 76 : 40, b: 48 }, ...layout,
    width: printing ? PAPER_WIDTH : undefined, autosize: !printing,
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: colours.ink, size: 12, family: "system-ui, sans-serif" },
    hoverlabel: { bgcolor: colours.hover, bordercolor: colours.line, font: { color: colours.ink }, align: "left" },
    modebar: { color: colours.line, activecolor: colours.ink, bgcolor: "rgba(0,0,0,0)" },
  };
  for (const name of Object.keys(result)) if (/^[xy]axis/.test(name)) result[name] = { ...axis, ...result[name] };
  return result;
}

// [chart, side]: "course-source" is the chart course of the side source.
const partsOf = (name) => name.split("-");

const RANGE = /^(\d+)(?:–(\d+))?$/;
const rankOfLabel = (label) => RANGE.exec(label).slice(1).filter(Boolean).map(Number);

// The rows of a heat map that the filter of ranks leaves; a row may stand for several ranks.
function rowsLeft(trace) {
  return trace.y.map((label, row) => row).filter((row) => state.hasRank(...rankOfLabel(trace.y[row])));
}

function heatOfRanks(figure) {
  return figure.data.map((trace, place) => {
    const rows = rowsLeft(trace);
    return { ...trace, visible: place === state.quantity, y: rows.map((row) => trace.y[row]), z: rows.map((row) => trace.z[row]) };
  });
}

// The curves over time of some ranks, from the rows of the heat map; null where a row stands for several ranks.
function curvesOfRanks(side) {
  const { data } = figures[`heat-${side}`];
  if (!data.length || data[0].y.some((label) => rankOfLabel(label).length > 1)) return null;
  const rows = rowsLeft(data[0]);
  const curve = (quantity, name, colour, axis, unit, mean) => {
    const trace = data.find(({ meta }) => meta === quantity);
    if (!trace) return [];
    const y = trace.x.map((_, bin) => {
      const at = Math.min(bin, trace.x.length - 2);
      const sum = rows.reduce((total, row) => total + (trace.z[row][at] || 0), 0);
      return mean && rows.length ? sum / rows.length : sum;
    });
    return [{
      type: "scatter", mode: "lines", name, x: trace.x, y, yaxis: axis, fill: "tozeroy", legend: `legend${axis.slice(1)}`,
      line: { shape: "hv", color: colour, width: 1.5 }, hovertemplate: `%{y:,.4~g} ${unit}`,
    }];
  };
  return [
    ...curve("bandwidth", "read and written", colourOf.read, "y", "MiB/s", false),
    ...curve("in_flight_mean", "mean", colourOf.read, "y2", "operations", false),
    ...curve("io_busy_share", "I/O in flight", colourOf.read, "y3", "%", true),
    ...curve("compute_busy_share", "compute", colourOf.compute, "y3", "%", true),
  ];
}

function dataOf(name) {
  const [chart, side] = partsOf(name);
  if (chart === "heat") return heatOfRanks(figures[name]);
  if (chart === "course" && state.ranks !== null) return curvesOfRanks(side) || figures[name].data;
  return figures[name].data;
}

// Range of the x axis in the window of the page; null for a chart that is not about time.
function rangeOf(name) {
  const [chart, side] = partsOf(name);
  if (chart === "steps") return stepsWithin(side);
  return ["course", "heat", "lag"].includes(chart) ? state.window.map((time) => time / NS) : null;
}

function stepsWithin(side) {
  const { step, from_ns: from, until_ns: until } = steps[side];
  const width = step.length > 1 ? step[1] - step[0] : 1;
  const [low, high] = state.window;
  const inside = step.map((_, place) => place).filter((place) => from[place] < high && until[place] > low);
  if (!inside.length) return [step[0], step.at(-1) + width];
  return [step[inside[0]], step[inside.at(-1)] + width];
}

// The times of the steps in a range of their axis.
function timesOfSteps(side, [low, high]) {
  const { step, from_ns: from, until_ns: until } = steps[side];
  const width = step.length > 1 ? step[1] - step[0] : 1;
  const inside = step.map((_, place) => place).filter((place) => step[place] < high && step[place] + width > low);
  return inside.length ? [Math.min(...inside.map((place) => from[place])), Math.max(...inside.map((place) => until[place]))] : null;
}

function changeAxes(layout, chart) {
  for (const axis of chart === "sizes" ? [layout.yaxis, layout.yaxis2] : [layout.yaxis]) {
    const linear = axis.type === "log";
    Object.assign(axis, { type: linear ? "linear" : "log", range: undefined, autorange: true });
  }
}

function drawFigure(name) {
  const place = document.getElementById(name);
  const [chart] = partsOf(name);
  const layout = themed(structuredClone(figures[name].layout), theme());
  const range = rangeOf(name);
  if (range) Object.assign(layout.xaxis, { range, autorange: false });
  if (state.linear[chart]) changeAxes(layout, chart);
  const data = dataOf(name);
  if (chart === "heat") layout.height += 14 * (Math.max(data[0].y.length, 6) - Math.max(figures[name].data[0].y.length, 6));
  place.style.height = place.style.minHeight = `${layout.height}px`;
  return Plotly.react(place, data, layout, CONFIG);
}
