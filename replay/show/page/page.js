// What the page does when it is opened: unpack its data, draw, follow the controls, the address, the theme and the printer.

const timelines = [];
const offsetViews = [];
let colourOf = {};
let state = null;

function drawTimes() {
  for (const view of [...timelines, ...offsetViews]) view.draw();
  for (const name of Object.keys(figures)) if (rangeOf(name)) drawFigure(name);
}

function drawAll() {
  for (const view of [...timelines, ...offsetViews]) view.draw();
  for (const name of Object.keys(figures)) drawFigure(name);
}

// After any change by the reader: the address and the words beside the controls.
function said() {
  const fragment = state.toFragment();
  history.replaceState(null, "", fragment ? `#${fragment}` : location.pathname + location.search);
  showWords();
}

function showWords() {
  const quiet = document.getElementById("quiet-note");
  const folded = state.home[0] > state.whole[0] && state.window[0] >= state.home[0];
  quiet.hidden = !folded;
  if (folded && !quiet.childElementCount) {
    quiet.textContent = `The charts begin after ${textOfTime(state.home[0] - state.whole[0])} of start-up without I/O or ` +
      "compute worth showing. ";
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "show the start-up";
    button.addEventListener("click", () => zoomTo(...state.whole));
    quiet.append(button);
  }
  const note = document.getElementById("filter-note");
  const words = [];
  if (state.rankText && state.ranks === null) words.push("The filter of ranks is not a list such as 0-3,8, so all ranks are shown.");
  if (state.ranks) {
    words.push("The filter of ranks applies to the timeline, offsets, bandwidth (where each rank has its own row in the heat map), heat map, " +
      "and the rows of the tables. Steps, request sizes and totals cover all ranks.");
  }
  if (state.filtersFiles) {
    words.push("The filter of files applies to the timeline, offsets, and the rows of the table of files. The other charts cover all files.");
  }
  note.hidden = !words.length;
  note.textContent = words.join(" ");
}

function zoomTo(from, until) {
  state.zoom(from, until);
  drawTimes();
  said();
}

function goHome() {
  state.window = state.home;
  drawTimes();
  said();
}

// A zoom by the mouse in any chart of time: all others follow.
function followed(event, name) {
  if (event["xaxis.autorange"]) {
    goHome();
    return;
  }
  const range = event["xaxis.range"] || [event["xaxis.range[0]"], event["xaxis.range[1]"]];
  if (range[0] === undefined) return;
  const [chart, side] = partsOf(name);
  const times = chart === "steps" ? timesOfSteps(side, range) : range.map((time) => time * NS);
  if (times) zoomTo(...times);
}

function viewControls() {
  const controls = document.getElementById("view-controls");
  controls.addEventListener("click", ({ target }) => {
    const { zoom, window: number, side } = target.dataset;
    if (zoom === "home") goHome();
    else if (zoom) {
      const [scale, move] = { in: [0.25, 0], out: [4, 0], left: [1, -0.5], right: [1, 0.5] }[zoom];
      const [from, until] = state.window;
      const middle = (from + until) / 2 + move * (until - from);
      const half = ((until - from) * scale) / 2;
      zoomTo(middle - half, middle + half);
    } else if (number) {
      const found = timelines.find((view) => view.key === side).data.windows[number];
      zoomTo(found.from_ns, found.until_ns);
    }
  });
  const filters = { "rank-filter": "rankText", "file-filter": "fileText" };
  for (const [id, field] of Object.entries(filters)) {
    document.getElementById(id).addEventListener("input", ({ target }) => {
      state[field] = target.value;
      if (field === "fileText") state.file = 0;
      filterTables();
      drawTimes();
      said();
    });
  }
  document.getElementById("timeline-legend").addEventListener("change", ({ target }) => {
    state.hidden[target.checked ? "delete" : "add"](target.dataset.kind);
    for (const view of [...timelines, ...offsetViews]) view.draw();
    said();
  });
}

function chartControls() {
  for (const controls of document.querySelectorAll(".controls[data-for]")) {
    const [chart] = partsOf(controls.dataset.for);
    controls.addEventListener("click", ({ target }) => {
      if (target.dataset.log === undefined) return;
      state.linear[chart] = !state.linear[chart];
      showControls();
      for (const name of Object.keys(figures)) if (partsOf(name)[0] === chart) drawFigure(name);
      said();
    });
    controls.addEventListener("change", ({ target }) => {
      if (target.dataset.quantity !== undefined) state.quantity = Number(target.value);
      else if (target.dataset.offsets !== undefined) state.file = Number(target.value);
      else return;
      showControls();
      for (const view of offsetViews) view.draw();
      for (const name of Object.keys(figures)) if (partsOf(name)[0] === "heat") drawFigure(name);
      said();
    });
  }
}

// The controls as the state has them.
function showControls() {
  document.getElementById("rank-filter").value = state.rankText;
  document.getElementById("file-filter").value = state.fileText;
  for (const box of document.querySelectorAll("[data-kind]")) box.checked = !state.hidden.has(box.dataset.kind);
  for (const button of document.querySelectorAll("[data-log]")) {
    const [chart] = partsOf(button.closest("[data-for]").dataset.for);
    button.initially ??= button.getAttribute("aria-pressed") === "true";
    button.setAttribute("aria-pressed", String(button.initially !== Boolean(state.linear[chart])));
  }
  for (const choice of document.querySelectorAll("[data-quantity]")) choice.value = state.quantity;
}

// What the address says, when the page is opened and when another link into it is followed.
function restore() {
  state.fromFragment(location.hash.slice(1));
  showControls();
  filterTables();
  showWords();
}

function toSection() {
  if (state.section) document.getElementById(state.section)?.scrollIntoView();
}

function menu() {
  for (const link of document.querySelectorAll('a[href^="#"]')) {
    link.addEventListener("click", (event) => {
      event.preventDefault();
      state.section = link.getAttribute("href").slice(1);
      toSection();
      said();
    });
  }
}

function beginCharts() {
  for (const place of document.querySelectorAll(".chart")) {
    place.on("plotly_relayout", (event) => { if (rangeOf(place.id) || place.id.match(/^(timeline|offsets)-/)) followed(event, place.id); });
    oneTabStop(place);
  }
}

function forPrinting(on) {
  printing = on;
  drawAll();
}

function begin(data) {
  ({ figures, steps, colours: colourOf } = data);
  const all = Object.values(data.timelines);
  const whole = [Math.min(...all.map((found) => found.from_ns)), Math.max(...all.map((found) => found.until_ns))];
  state = new ViewState(...whole, data.home_ns);
  for (const [key, timeline] of Object.entries(data.timelines)) {
    timelines.push(new TimelineView(key, timeline, colourOf));
    if (document.getElementById(`offsets-${key}`)) offsetViews.push(new OffsetView(key, data.offsets[key], timeline.axis));
  }
  beginTables();
  restore();
  drawAll();
  beginCharts();
  viewControls();
  chartControls();
  menu();
  toSection();
  window.addEventListener("hashchange", () => { restore(); drawAll(); toSection(); });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  window.addEventListener("beforeprint", () => forPrinting(true));
  window.addEventListener("afterprint", () => forPrinting(false));
}

openPage(begin);
