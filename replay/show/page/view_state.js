// What the reader looks at: the stretch of time, ranks, files and kinds. Charts and tables read it; it is written to the
// fragment of the page's address, so that a link leads to the same view.

const NS = 1e9;
const SHORTEST_NS = 100; // that can be zoomed to

class ViewState {
  constructor(from, until, home) {
    this.whole = [from, until];
    this.home = home;
    this.window = home;
    this.rankText = "";
    this.fileText = "";
    this.hidden = new Set(); // kinds of bars
    this.linear = {}; // by chart: whether its value axis was changed from what it begins with
    this.quantity = 0; // of the heat map
    this.file = 0; // of the offset view, among the files that the filter lets through
    this.section = "";
  }

  // Cut to what there is; a little more than all of it is all of it.
  zoom(from, until) {
    const [first, last] = this.whole;
    const width = Math.max(until - from, SHORTEST_NS);
    if (width >= last - first) this.window = [first, last];
    else {
      const middle = Math.min(Math.max((from + until) / 2, first + width / 2), last - width / 2);
      this.window = [middle - width / 2, middle + width / 2];
    }
  }

  get atHome() {
    return this.window[0] === this.home[0] && this.window[1] === this.home[1];
  }

  // Ranks of the filter's text ("0-3,8") as pairs [first, last]; null for all, also where the text is not a list of ranks.
  get ranks() {
    const parts = this.rankText.split(",").map((part) => part.trim()).filter(Boolean);
    const found = parts.map((part) => /^(\d+)(?:\s*[-–]\s*(\d+))?$/.exec(part));
    if (!parts.length || found.includes(null)) return null;
    return found.map((match) => [Number(match[1]), Number(match[2] ?? match[1])]);
  }

  // Whether any rank from `first` to `last` passes.
  hasRank(first, last = first) {
    const { ranks } = this;
    return ranks === null || ranks.some(([low, high]) => low <= last && high >= first);
  }

  hasFile(path) {
    return path.toLowerCase().includes(this.fileText.trim().toLowerCase());
  }

  get filtersFiles() {
    return this.fileText.trim() !== "";
  }

  toFragment() {
    const found = new URLSearchParams();
    if (!this.atHome) found.set("t", this.window.map((time) => (time / NS).toFixed(9)).join(".."));
    if (this.rankText) found.set("ranks", this.rankText);
    if (this.fileText) found.set("files", this.fileText);
    if (this.hidden.size) found.set("hide", [...this.hidden].join(","));
    const changed = Object.keys(this.linear).filter((name) => this.linear[name]);
    if (changed.length) found.set("axes", changed.join(","));
    if (this.quantity) found.set("heat", this.quantity);
    if (this.file) found.set("file", this.file);
    return [this.section, found.toString()].filter(Boolean).join("&");
  }

  fromFragment(fragment) {
    const [first, ...rest] = fragment.split("&");
    this.section = first.includes("=") ? "" : first;
    const found = new URLSearchParams(this.section ? rest.join("&") : fragment);
    const times = (found.get("t") || "").split("..").map((text) => parseFloat(text) * NS);
    this.window = this.home;
    if (times.length === 2 && times[0] < times[1]) this.zoom(...times);
    this.rankText = found.get("ranks") || "";
    this.fileText = found.get("files") || "";
    this.hidden = new Set((found.get("hide") || "").split(",").filter(Boolean));
    this.linear = Object.fromEntries((found.get("axes") || "").split(",").filter(Boolean).map((name) => [name, true]));
    this.quantity = Number(found.get("heat")) || 0;
    this.file = Number(found.get("file")) || 0;
  }
}
