// The page is whole without this. It sorts, searches, copies, and looks up diagrams that Python computed.
"use strict";
(() => {
  const number = (cell) => {
    const value = parseFloat(cell.textContent.replace(/[,%]/g, "").replace("−", "-"));
    return Number.isNaN(value) ? -Infinity : value;
  };

  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const words = head.classList.contains("left");
        // Names first go up, numbers first go down: the largest are looked for.
        const up = head.ariaSort ? head.ariaSort === "descending" : words;
        const compare = words
          ? (a, b) => a.cells[column].textContent.localeCompare(b.cells[column].textContent, undefined, { numeric: true })
          : (a, b) => number(a.cells[column]) - number(b.cells[column]);
        const rows = [...body.rows].sort((a, b) => (up ? compare(a, b) : compare(b, a)));
        body.append(...rows);
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
      });
    });
  }

  for (const tools of document.querySelectorAll(".search")) {
    tools.hidden = false;
    const input = tools.querySelector("input");
    const shown = tools.querySelector("output");
    const rows = [...document.getElementById(input.dataset.table).tBodies[0].rows];
    const texts = rows.map((row) => row.cells[0].textContent.toLowerCase());
    input.addEventListener("input", () => {
      const wanted = input.value.trim().toLowerCase();
      let count = 0;
      rows.forEach((row, i) => {
        row.hidden = !texts[i].includes(wanted);
        count += !row.hidden;
      });
      shown.textContent = `${count.toLocaleString("en")} of ${rows.length.toLocaleString("en")} shown`;
    });
  }

  for (const button of document.querySelectorAll("button.copy")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const code = document.getElementById(button.dataset.code);
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(code);
        button.textContent = "Selected: copy it";
      }
    });
  }

  for (const part of document.querySelectorAll(".interactive")) {
    part.hidden = false;
    const data = JSON.parse(part.querySelector("script").textContent);
    const [left, top, side, gap, bars] = data.box;
    const bottom = top + side + gap + bars;
    const bins = [...part.querySelectorAll(".bin")];
    const find = (name) => part.querySelector(`[data-is="${name}"]`);
    const sliders = { gamma: find("gamma"), temperature: find("temperature") };
    const presets = [...part.querySelectorAll("[data-preset]")];
    const y = (value) => top + (1 - value) * side;
    const set = (shape, values) => Object.entries(values).forEach(([name, value]) => shape.setAttribute(name, value));

    const draw = () => {
      const i = sliders.gamma ? +sliders.gamma.value : 0;
      const j = +sliders.temperature.value;
      const [counts, confidence, accuracy, low, high, ece, nll] = data.points[i][j];
      const most = Math.max(...counts);
      bins.forEach((bin, b) => {
        const [mean, hit, below, above] = [confidence, accuracy, low, high].map((values) => values[b] / 1e4);
        const at = left + mean * side;
        const bar = (bars * counts[b]) / most;
        bin.classList.toggle("empty", counts[b] === 0);
        set(bin.querySelector(".band"), { y: y(above), height: (above - below) * side });
        set(bin.querySelector(".gap"), { x1: at, x2: at, y1: y(mean), y2: y(hit) });
        set(bin.querySelector(".dot"), { cx: at, cy: y(hit) });
        set(bin.querySelector(".bar"), { y: bottom - bar, height: bar });
        bin.querySelector("title").textContent =
          `${counts[b].toLocaleString("en")} cases, mean score ${mean.toFixed(3)}, observed ${hit.toFixed(3)}`;
      });
      find("ece").textContent = ece;
      find("nll").textContent = nll;
      const words = [];
      for (const [name, slider] of Object.entries(sliders)) {
        if (!slider) continue;
        const text = data[name][+slider.value];
        find(`${name}-shown`).textContent = text;
        slider.setAttribute("aria-valuetext", text);
        words.push(`${name} ${text}`);
      }
      part.querySelector("desc").textContent = `With ${words.join(" and ")}: expected calibration error ${ece}.`;
      presets.forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.preset === `${i},${j}`)));
    };

    Object.values(sliders).forEach((slider) => slider && slider.addEventListener("input", draw));
    presets.forEach((button) =>
      button.addEventListener("click", () => {
        const [i, j] = button.dataset.preset.split(",");
        if (sliders.gamma) sliders.gamma.value = i;
        sliders.temperature.value = j;
        draw();
      }),
    );
    draw();
  }
})();
