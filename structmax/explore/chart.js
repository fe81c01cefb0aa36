// How many parts are above 0 at each temperature, and where the page stands.

import { element } from "./grid.js";

const WIDTH = 420;
const HEIGHT = 150;
const LEFT = 34;
const BOTTOM = 24;

const shape = (tag, attributes, text = "") => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = text;
  return made;
};

export class Chart {
  constructor(node) {
    this.svg = shape("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
    this.marker = shape("line", { class: "now", y1: 6, y2: HEIGHT - BOTTOM });
    this.legend = element("ul", "legend");
    this.note = element("p");
    node.append(this.svg, this.legend, this.note);
  }

  x(temperature) {
    const [low, high] = this.range.map(Math.log);
    return LEFT + ((Math.log(temperature) - low) / (high - low)) * (WIDTH - LEFT - 8);
  }

  show(sweep) {
    const { temperatures, parts, above } = sweep;
    this.range = [temperatures[0], temperatures.at(-1)];
    const y = (count) => HEIGHT - BOTTOM - (count / parts) * (HEIGHT - BOTTOM - 10);
    const shapes = [0, parts].flatMap((count) => [
      shape("line", { class: "grid", x1: LEFT, x2: WIDTH - 8, y1: y(count), y2: y(count) }),
      shape("text", { class: "tick", x: LEFT - 6, y: y(count) + 4, "text-anchor": "end" }, String(count)),
    ]);
    for (const temperature of [0.05, 0.1, 0.5, 1, 5, 10]) {
      const place = { class: "tick", x: this.x(temperature), y: HEIGHT - 8, "text-anchor": "middle" };
      shapes.push(shape("text", place, String(temperature)));
    }
    const names = Object.keys(above);
    for (const name of names) {
      const points = above[name].map((count, i) => `${this.x(temperatures[i]).toFixed(1)},${y(count).toFixed(1)}`);
      shapes.push(shape("polyline", { class: `curve line-${names.indexOf(name)}`, points: points.join(" ") }));
    }
    this.svg.replaceChildren(shape("title", {}, `${sweep.noun} above 0 by temperature`), ...shapes, this.marker);
    const none = "Marginals never reach 0, but for rounding.";
    this.note.textContent = `How many ${sweep.noun} are above 0 at each temperature. ${none}`;
    this.legend.replaceChildren(
      ...names.map((name, i) => {
        const item = element("li");
        item.append(element("i", `line-${i}`), name);
        return item;
      }),
    );
  }

  at(temperature) {
    if (!this.range) return;
    for (const end of ["x1", "x2"]) this.marker.setAttribute(end, this.x(temperature));
  }
}
