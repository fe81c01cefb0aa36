"use strict";

// Values of the run nearest to the pointer, which is brought forward; the other runs step back.
for (const chart of document.querySelectorAll("svg.curves")) {
  const curves = [...chart.querySelectorAll(".curve")].map((path) => ({
    path,
    run: path.dataset.run,
    split: path.dataset.split,
    points: JSON.parse(path.dataset.points),
  }));
  const shapes = [...chart.querySelectorAll(".curve, .band")];
  const runs = new Set(curves.map((curve) => curve.run));
  const told = document.createElement("div");
  told.className = "told";
  told.hidden = true;
  chart.closest("figure").append(told);

  const nearest = (points, distance) =>
    points.reduce((best, point) => (best && distance(best) <= distance(point) ? best : point), null);

  const clear = () => {
    told.hidden = true;
    for (const dot of chart.querySelectorAll(".pointer")) dot.remove();
    for (const shape of shapes) shape.classList.remove("dimmed", "raised");
  };

  chart.addEventListener("pointermove", (event) => {
    clear();
    const pointer = new DOMPoint(event.clientX, event.clientY).matrixTransform(chart.getScreenCTM().inverse());
    const away = ([x, y]) => Math.hypot(x - pointer.x, y - pointer.y);
    const chosen = nearest(curves.flatMap((curve) => curve.points.map((point) => [...point, curve.run])), away);
    if (chosen === null) return;
    const [x, , at, , run] = chosen;
    const lines = runs.size > 1 ? [run] : [];
    lines.push(`${chart.dataset.along} ${at}`);
    for (const shape of shapes) shape.classList.add(shape.dataset.run === run ? "raised" : "dimmed");
    for (const curve of curves) {
      const point = curve.run === run && nearest(curve.points, (other) => Math.abs(other[0] - x));
      if (!point || Math.abs(point[0] - x) > 0.5) continue;
      lines.push(`${curve.split || "value"} ${point[3]}`);
      const dot = document.createElementNS(chart.namespaceURI, "circle");
      dot.setAttribute("class", "pointer");
      dot.setAttribute("style", curve.path.getAttribute("style"));
      dot.setAttribute("cx", point[0]);
      dot.setAttribute("cy", point[1]);
      dot.setAttribute("r", 4);
      chart.append(dot);
    }
    told.textContent = lines.join("\n");
    told.hidden = false;
  });
  chart.addEventListener("pointerleave", clear);
}

// A setting in the legend brings its runs forward in all charts.
for (const setting of document.querySelectorAll(".legend .setting")) {
  const dim = (active) => {
    for (const shape of document.querySelectorAll(".curve, .band")) {
      const isChosen = shape.dataset.setting === setting.textContent;
      shape.classList.toggle("raised", active && isChosen);
      shape.classList.toggle("dimmed", active && !isChosen);
    }
  };
  setting.addEventListener("pointerenter", () => dim(true));
  setting.addEventListener("pointerleave", () => dim(false));
}

// Tables are sorted by a click on a column's head: numbers as numbers, empty cells last.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const sign = head.getAttribute("aria-sort") === "descending" ? 1 : -1;
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      const key = (row) => row.cells[column].dataset.order;
      const compare = (a, b) => {
        if (a === "" || b === "") return (a === "") - (b === "");
        return sign * (isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b);
      };
      const rows = [...table.tBodies[0].rows].sort((a, b) => compare(key(a), key(b)));
      table.tBodies[0].append(...rows);
    });
  });
}

document.documentElement.classList.add("live");
