// The page of an experiment (`dxt-replay regress --html`): two figures, drawn again for another theme and for paper.

function drawFigures() {
  for (const [name, figure] of Object.entries(figures)) {
    const place = document.getElementById(name);
    place.style.minHeight = `${figure.layout.height}px`;
    Plotly.react(place, figure.data, themed(structuredClone(figure.layout), theme()), CONFIG);
  }
}

openPage((data) => {
  figures = data.figures;
  drawFigures();
  for (const place of document.querySelectorAll(".chart")) oneTabStop(place);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawFigures);
  window.addEventListener("beforeprint", () => { printing = true; drawFigures(); });
  window.addEventListener("afterprint", () => { printing = false; drawFigures(); });
});
