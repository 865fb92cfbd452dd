// Where in a file the job read and wrote over time: a line for each operation, from its first byte to its last.

class OffsetView {
  constructor(key, files, axis) {
    this.key = key;
    this.files = files;
    this.axis = axis;
    this.place = document.getElementById(`offsets-${key}`);
    this.status = document.getElementById(`offsets-${key}-status`);
    this.choice = document.querySelector(`[data-offsets="${key}"]`);
    for (const file of files) {
      let at = 0;
      file.start = file.start.map((gap) => (at += gap));
    }
  }

  // The files that the filter lets through, as options.
  list() {
    this.shown = this.files.filter(({ file, rank }) =>
      state.hasFile(file) && (state.ranks === null || rank.some((number) => state.hasRank(number))));
    this.choice.replaceChildren(...this.shown.map(({ file, operations }, place) =>
      new Option(`${file} (${operations.toLocaleString("en")})`, place, false, place === this.number)));
  }

  get number() {
    return Math.min(Math.max(state.file, 0), Math.max(this.shown.length - 1, 0));
  }

  traces(file) {
    const colours = { 0: colourOf.read, 1: colourOf.write };
    return ["read", "write"].map((name, written) => {
      const trace = {
        type: "scatter", mode: "lines+markers", name, x: [], y: [], hovertext: [], connectgaps: false,
        line: { color: colours[written], width: 2 }, marker: { size: 3, color: colours[written] },
        hovertemplate: "%{hovertext}<extra></extra>",
      };
      for (let i = 0; i < file.start.length; i++) {
        if (file.written[i] !== written || !state.hasRank(file.rank[i]) || state.hidden.has(name)) continue;
        const label = `<b>${name}</b>, rank ${file.rank[i]}<br>${textOfBytes(file.bytes[i])} at offset ` +
          `${file.offset[i].toLocaleString("en")}<br>from ${(file.start[i] / NS).toFixed(9)} s, ` +
          `for ${textOfTime(file.length[i])}`;
        trace.x.push(file.start[i] / NS, (file.start[i] + file.length[i]) / NS, null);
        trace.y.push(file.offset[i], file.offset[i] + file.bytes[i], null);
        trace.hovertext.push(label, label, "");
      }
      return trace;
    }).filter((trace) => trace.x.length);
  }

  draw() {
    this.list();
    const file = this.shown[this.number];
    const layout = themed({
      height: 340, hovermode: "closest", showlegend: true,
      xaxis: { title: { text: this.axis }, range: state.window.map((time) => time / NS) },
      yaxis: { title: { text: "offset [B]" }, tickformat: "~s", rangemode: "tozero" },
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
    }, theme());
    this.status.textContent = !file ? "No file passes the filters."
      : file.one_in > 1 ? `${file.file}: about 1 in ${file.one_in.toLocaleString("en")} of ` +
        `${file.operations.toLocaleString("en")} operations, evenly chosen`
        : `${file.file}: all ${file.operations.toLocaleString("en")} operations`;
    return Plotly.react(this.place, file ? this.traces(file) : [], layout, CONFIG);
  }
}
