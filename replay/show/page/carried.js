// What every page does: unpack plotly and the data that it carries, begin, and say so where that fails.

function unpacked(id) {
  const packed = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
  return new TextDecoder().decode(gunzip(packed));
}

function run(code, nonce) {
  const script = document.createElement("script");
  script.nonce = nonce;
  script.textContent = code;
  document.head.append(script);
}

// One tab stop for the buttons of a chart: the arrow keys lead to the others.
function oneTabStop(place) {
  const buttonsOf = () => [...place.querySelectorAll(".modebar-btn")];
  const stop = () => buttonsOf().forEach((button, at) => { button.tabIndex = at ? -1 : 0; });
  place.on("plotly_afterplot", stop);
  stop();
  place.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const buttons = buttonsOf();
    const at = buttons.indexOf(document.activeElement);
    if (step && at >= 0) buttons[(at + step + buttons.length) % buttons.length].focus();
  });
}

// Tables that reach beyond their place show it.
function markSideways() {
  const sideways = new ResizeObserver((entries) => {
    for (const { target } of entries) target.classList.toggle("sideways", target.scrollWidth > target.clientWidth + 1);
  });
  for (const place of document.querySelectorAll(".scroll")) sideways.observe(place);
}

// `begin` is called with the data of the page once plotly is there.
function openPage(begin) {
  try {
    run(unpacked("plotly"), document.currentScript.nonce);
    begin(JSON.parse(unpacked("data")));
    markSideways();
    document.documentElement.dataset.complete = String(Math.round(performance.now()));
  } catch (error) {
    const trouble = document.getElementById("trouble");
    trouble.hidden = false;
    trouble.textContent = `The charts could not be drawn (${error}); they need a browser of 2022 or later. The tables are whole.`;
    console.error(error);
  }
}
