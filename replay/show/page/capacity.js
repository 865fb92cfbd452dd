// The page of a search for the capacity: its figure follows the theme and the printer, and nothing else.

const state = { linear: {} };

function drawAll() {
  for (const name of Object.keys(figures)) drawFigure(name);
}

function forPrinting(on) {
  printing = on;
  drawAll();
}

openPage((data) => {
  ({ figures } = data);
  drawAll();
  for (const place of document.querySelectorAll(".chart")) oneTabStop(place);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  window.addEventListener("beforeprint", () => forPrinting(true));
  window.addEventListener("afterprint", () => forPrinting(false));
});
