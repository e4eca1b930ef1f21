"use strict";
(function () {
  const root = document.documentElement;
  const prefers = window.matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  let views = [];

  function value(name) {
    return getComputedStyle(root).getPropertyValue(name).trim();
  }

  function config() {
    const ink = value("--ink"), faint = value("--faint"), line = value("--line");
    const font = "system-ui, -apple-system, 'Segoe UI', Arial, sans-serif";
    return {
      background: null, font: font,
      view: { stroke: line },
      axis: { labelColor: ink, titleColor: faint, gridColor: line, domainColor: line, tickColor: line, labelFontSize: 12, titleFontWeight: "normal" },
      legend: { labelColor: ink, titleColor: faint, orient: "bottom", labelLimit: 260, labelFontSize: 12 },
      rule: { color: ink }, text: { color: ink },
    };
  }

  // Labels, legends and marks as the chart's width has room for them.
  function fit(spec, width) {
    const narrow = width < 560;
    if (narrow) spec.config.legend.columns = 1;
    [spec].concat(spec.layer || []).map((part) => part.encoding || {}).forEach((encoding) => {
      const x = encoding.x, y = encoding.y, color = encoding.color;
      if (x && x.type === "quantitative") x.axis = Object.assign({}, x.axis, { tickCount: narrow ? 4 : 8 });
      if (y && y.type === "nominal") y.axis = Object.assign({}, y.axis, { labelLimit: Math.min((y.axis || {}).labelLimit || 320, 0.4 * width) });
      if (narrow && color && color.legend) color.legend = Object.assign({}, color.legend, { columns: 1 });
    });
  }

  function draw() {
    views.forEach((view) => view.finalize());
    views = Array.from(document.querySelectorAll(".chart")).map((place) => {
      const text = place.nextElementSibling.textContent;
      const spec = Object.assign(JSON.parse(text), { config: config(), autosize: { type: "fit-x", contains: "padding" } });
      fit(spec, place.clientWidth);
      const view = new vega.View(vega.parse(vegaLite.compile(spec).spec), { renderer: "svg", container: place, hover: true });
      view.tooltip(new Tooltip(place).show);
      view.run();
      return view;
    });
  }

  function Tooltip(place) {
    this.show = function (handler, event, item, text) {
      const old = document.getElementById("tip");
      if (old) old.remove();
      if (text === null || text === undefined || text === "") return;
      const tip = document.createElement("div");
      tip.id = "tip";
      tip.setAttribute("role", "tooltip");
      const pairs = typeof text === "object" ? Object.entries(text) : [["", text]];
      pairs.forEach(([name, shown]) => {
        const row = document.createElement("div");
        row.textContent = name ? name + ": " + shown : String(shown);
        tip.appendChild(row);
      });
      tip.style.cssText = "position:fixed;pointer-events:none;max-width:22rem;padding:.3rem .6rem;font-size:.85rem;border-radius:4px;background:" + value("--card") + ";color:" + value("--ink") + ";border:1px solid " + value("--line");
      document.body.appendChild(tip);
      const box = tip.getBoundingClientRect();
      tip.style.left = Math.max(4, Math.min(event.clientX + 12, innerWidth - box.width - 4)) + "px";
      tip.style.top = Math.max(4, Math.min(event.clientY + 12, innerHeight - box.height - 4)) + "px";
    };
  }

  // What scrolls sideways is reached by keys.
  function reach() {
    document.querySelectorAll(".wide").forEach((place) => {
      if (place.scrollWidth > place.clientWidth) place.tabIndex = 0;
      else place.removeAttribute("tabindex");
    });
  }

  function dress() {
    const dark = chosen === null ? prefers.matches : chosen;
    root.dataset.theme = dark ? "dark" : "light";
    const button = document.getElementById("theme");
    if (button) {
      button.textContent = dark ? "Light" : "Dark";
      button.setAttribute("aria-pressed", String(dark));
    }
    draw();
    reach();
  }

  let width = innerWidth;
  let waiting = 0;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(() => { draw(); reach(); }, 100);
  });
  prefers.addEventListener("change", dress);

  // On paper: light, with every table.
  let unfolded = [];
  addEventListener("beforeprint", () => {
    unfolded = Array.from(document.querySelectorAll("details:not([open])"));
    unfolded.forEach((part) => (part.open = true));
    root.dataset.theme = "light";
    draw();
  });
  addEventListener("afterprint", () => {
    unfolded.forEach((part) => (part.open = false));
    dress();
  });

  async function copy(button) {
    const code = button.closest(".command").querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {
      const range = document.createRange();
      range.selectNodeContents(code);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      document.execCommand("copy");
    }
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  }

  async function save() {
    const packed = Uint8Array.from(atob(document.getElementById("answer").textContent.trim()), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const link = document.createElement("a");
    link.href = URL.createObjectURL(await new Response(stream).blob());
    link.download = "cellplan.json";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  document.addEventListener("click", (event) => {
    const target = event.target;
    if (target.id === "theme") {
      chosen = root.dataset.theme !== "dark";
      dress();
    } else if (target.id === "save" && document.getElementById("answer")) {
      save();
    } else if (target.classList.contains("copy")) {
      copy(target);
    }
  });

  // What the page of `cellplan serve` calls when it has put another answer in.
  window.dressPage = dress;
  dress();
})();
