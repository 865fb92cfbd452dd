// Tables: sorted by their heads, filtered by the page's ranks and files and by a text of their own.

const LEAST_ROWS = 8; // of a table with a search box

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

function filterTable(table) {
  const columns = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
  const [rank, file] = [columns.indexOf("rank"), columns.indexOf("file")];
  const words = (table.search?.value || "").trim().toLowerCase();
  let shown = 0;
  for (const row of table.tBodies[0].rows) {
    row.hidden = (rank >= 0 && !state.hasRank(Number(row.cells[rank].textContent))) ||
      (file >= 0 && !state.hasFile(row.cells[file].textContent)) ||
      (words !== "" && !row.textContent.toLowerCase().includes(words));
    if (!row.hidden) shown++;
  }
  const all = table.tBodies[0].rows.length;
  table.counted.textContent = shown < all ? `${shown} of ${all} rows; totals are of all rows` : "";
}

function filterTables() {
  for (const table of document.querySelectorAll("table.sortable")) filterTable(table);
}

function beginTables() {
  for (const table of document.querySelectorAll("table.sortable")) {
    for (const button of table.tHead.querySelectorAll("button")) {
      button.addEventListener("click", () => sortTable(button.parentElement));
    }
    const bar = document.createElement("div");
    bar.className = "controls";
    table.counted = document.createElement("span");
    table.counted.setAttribute("role", "status");
    if (table.tBodies[0].rows.length >= LEAST_ROWS) {
      const label = document.createElement("label");
      table.search = document.createElement("input");
      table.search.type = "search";
      table.search.setAttribute("aria-label", `search in ${table.caption.textContent}`);
      table.search.addEventListener("input", () => filterTable(table));
      label.append("search ", table.search);
      bar.append(label);
    }
    bar.append(table.counted);
    table.closest(".scroll").before(bar);
  }
}
