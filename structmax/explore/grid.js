// Grids of cells with a row's and a column's name: scores that can be changed, and numbers that cannot.

import { LARGEST, rounded } from "./state.js";

export const element = (tag, kind = "", text = "") => {
  const made = document.createElement(tag);
  if (kind) made.className = kind;
  if (text) made.textContent = text;
  return made;
};

/** Only what differs is written: most cells stay as they are during a drag. */
const write = (cell, text, ink, negative) => {
  if (cell.textContent !== text) cell.textContent = text;
  cell.style.setProperty("--ink", ink.toFixed(3));
  cell.classList.toggle("negative", negative);
  cell.classList.toggle("strong", ink > 0.55);
};

/** .35 for 0.35, 1 for 1, and nothing for 0. */
export const share = (value) => {
  if (value === 0) return "";
  if (value > 1 - 1e-9) return value < 1.005 ? "1" : value.toFixed(1);
  return value < 0.005 ? "<.01" : value >= 0.995 ? ">.99" : value.toFixed(2).slice(1);
};

export const signed = (value, digits) => (value + 0).toFixed(digits).replace(/^-(?=.*[1-9])/, "−").replace("-", "");

export class Grid {
  constructor(kind) {
    this.node = element("div", `grid ${kind}`);
    this.layout = "";
    this.cells = [];
  }

  /** Builds cells, unless they are there: `each` prepares one. */
  build(field, each) {
    const layout = JSON.stringify([field.rows, field.columns, field.scores.map((row) => row.map((v) => v === null))]);
    if (layout === this.layout) return;
    this.layout = layout;
    this.node.replaceChildren();
    this.node.style.setProperty("--columns", field.columns.length);
    this.node.classList.toggle("single", field.columns.length === 1);
    this.node.classList.toggle("few", field.columns.length > 1 && field.columns.length <= 4);
    this.node.classList.toggle("upright", field.columns.length > 4);
    if (field.columns.length > 1 || field.rows.length === 1) {
      this.node.append(element("span", "corner"), ...field.columns.map((name) => named("column", name)));
    }
    this.cells = field.scores.map((row, i) => {
      this.node.append(named("row", field.rows[i]));
      return row.map((value, j) => {
        const cell = element("span", value === null ? "cell void" : "cell");
        this.node.append(cell);
        if (value === null) return null;
        each(cell, i, j);
        return cell;
      });
    });
  }

  each(grid, visit) {
    this.cells.forEach((row, i) => row.forEach((cell, j) => cell && visit(cell, grid[i][j], i, j)));
  }

  /** A grid that is only shown is a picture to a screen reader. */
  told(words) {
    Object.assign(this.node, { role: "img", ariaLabel: words });
  }

  /** Frames the target's cells. */
  frame(cells) {
    const wanted = new Set(cells.map(String));
    const frame = (cell, i, j) => cell && cell.classList.toggle("gold", wanted.has(`${i},${j}`));
    this.cells.forEach((row, i) => row.forEach((cell, j) => frame(cell, i, j)));
  }

  probabilities(grid) {
    this.each(grid, (cell, value) => write(cell, share(value), value && 0.08 + 0.92 * Math.min(1, value), false));
  }

  changes(grid, largest) {
    this.each(grid, (cell, value) => {
      write(cell, "", value && 0.08 + (0.92 * Math.abs(value)) / largest, value < 0);
      cell.title = value ? signed(value, 3) : "0";
    });
  }
}

const named = (kind, name) => {
  const label = element("span", kind, name);
  label.title = name;
  return label;
};

// Pixels of a drag that change a score by 1, and those that are not yet a drag.
const UNIT = 40;
const STILL = 3;
const KEYS = { ArrowUp: 0.1, ArrowDown: -0.1, PageUp: 1, PageDown: -1 };

/** Scores: every cell is a slider. One of them is in the order of tabs; arrows lead to the others. */
export class Scores extends Grid {
  constructor(changed, wanted) {
    super("editable");
    Object.assign(this, { changed, wanted });
  }

  show(field) {
    this.build(field, (cell, i, j) => this.prepare(cell, i, j, field));
    const largest = Math.max(4, ...field.scores.flat().map(Math.abs));
    this.each(field.scores, (cell, value) => {
      cell.value = value;
      const digits = Math.abs(value * 10 - Math.round(value * 10)) < 1e-9 ? 1 : 2;
      write(cell, signed(value, digits), (0.75 * Math.abs(value)) / largest, value < 0);
      cell.ariaValueNow = value;
    });
    const first = this.cells.flat().find(Boolean);
    if (first && !this.cells.flat().some((cell) => cell && cell.tabIndex === 0)) first.tabIndex = 0;
  }

  prepare(cell, i, j, field) {
    Object.assign(cell, { role: "slider", tabIndex: -1, ariaOrientation: "vertical" });
    Object.assign(cell, { ariaValueMin: -LARGEST, ariaValueMax: LARGEST });
    cell.ariaLabel = field.columns.length > 1 ? `${field.rows[i]}, ${field.columns[j]}` : field.rows[i];
    const set = (value) => this.changed(i, j, rounded(value));
    let from = null;
    cell.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      from = { x: event.clientX, y: event.clientY, value: cell.value, moved: false };
      cell.setPointerCapture(event.pointerId);
      this.focus(cell);
    });
    cell.addEventListener("pointermove", (event) => {
      if (from === null) return;
      // a finger that goes up or down scrolls
      const up = event.pointerType === "touch" ? 0 : from.y - event.clientY;
      const way = event.clientX - from.x + up;
      from.moved ||= Math.abs(way) > STILL;
      if (from.moved) set(Math.round((from.value + way / UNIT) * 10) / 10);
    });
    for (const end of ["pointerup", "pointercancel"]) cell.addEventListener(end, () => (from = null));
    cell.addEventListener("keydown", (event) => {
      if (event.altKey || event.ctrlKey || event.metaKey) return;
      if (event.key in KEYS) set(cell.value + KEYS[event.key]);
      else if (event.key === "Home" || event.key === "0") set(0);
      else if (event.key === "ArrowLeft") this.go(cell, -1);
      else if (event.key === "ArrowRight") this.go(cell, 1);
      else if (event.key === "Enter" || event.key === " ") this.wanted(i, j);
      else return;
      event.preventDefault();
    });
  }

  go(cell, way) {
    const all = this.cells.flat().filter(Boolean);
    this.focus(all[(all.indexOf(cell) + way + all.length) % all.length]);
  }

  focus(cell) {
    for (const other of this.cells.flat()) if (other) other.tabIndex = -1;
    cell.tabIndex = 0;
    cell.focus({ preventScroll: true });
  }
}
