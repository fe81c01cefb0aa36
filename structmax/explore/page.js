// From a change of the state to the answer on the page: one request at a time, and the newest state wins.

import { Chart } from "./chart.js";
import { element, Scores } from "./grid.js";
import { Cards, Gradients, Points, showTarget } from "./panels.js";
import { fresh, fromHash, rounded, toHash, words } from "./state.js";

const find = (id) => document.getElementById(id);
const { kinds, ranges } = await (await fetch("/kinds")).json();
const LOGARITHMIC = ["temperature", "step"];
const usual = Object.fromEntries(Object.entries(ranges).map(([name, [, , value]]) => [name, value]));

/** The state of the link, if it has one of a structure there is. */
const linked = () => {
  const given = fromHash(location.hash);
  return given && Object.hasOwn(kinds, given.kind) ? { ...usual, ...given } : null;
};
let state = linked() || { ...usual, ...fresh("dependencies", kinds.dependencies) };

// ---- asking

let busy = false;
let waiting = false;
// when the oldest change that is not drawn yet was made
let since = null;
// when gradients were drawn, and after how many milliseconds they are drawn again even if there is more to draw
let learntAt = 0;
const OFTEN = 250;

const post = async (path, body) => {
  const headers = { "Content-Type": "application/json" };
  const response = await fetch(path, { method: "POST", headers, body });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
};

const layout = (of) => JSON.stringify([of.kind, of.rows, of.columns]);

const ask = async () => {
  find("answers").ariaBusy = "true";
  if (busy) {
    waiting = true;
    return;
  }
  busy = true;
  do {
    waiting = false;
    const start = since;
    since = null;
    const asked = { ...state };
    try {
      const answer = await post("/answer", JSON.stringify(asked));
      find("complaint").textContent = "";
      if (layout(asked) === layout(state)) {
        accept(asked, answer);
        draw(answer);
        if (start !== null) requestAnimationFrame(() => told(performance.now() - start));
        // after the rest, which does not wait for them; while a drag goes on, a few times a second
        if (!waiting || performance.now() - learntAt > OFTEN) {
          const learnt = await post("/gradients", JSON.stringify({ ...asked, wanted: answer.target.cells }));
          if (layout(asked) === layout(state)) gradients.show({ ...answer, ...learnt });
          learntAt = performance.now();
        }
      }
    } catch (error) {
      find("complaint").textContent = error.message;
    }
  } while (waiting);
  busy = false;
  clearTimeout(resting);
  resting = setTimeout(chartIt, REST);
};

// Milliseconds without a change after which the chart is asked for: no drag waits for it.
const REST = 120;
let resting = null;

const chartIt = async () => {
  const asked = state;
  try {
    if (settled()) chart.show(await post("/sweep", JSON.stringify(asked)));
  } catch (error) {
    find("complaint").textContent = error.message;
  }
  chart.at(state.temperature);
  if (asked === state) find("answers").ariaBusy = "false";
};

/** What the server chose is the page's from now on: random scores, and the whole target if a part is wanted. */
const accept = (asked, answer) => {
  if (state.scores === null) state.scores = answer.fields.map((field) => field.scores);
  if (state.wanted.length && state.wanted === asked.wanted) state.wanted = answer.target.cells;
};

let saving = null;
const save = () => history.replaceState(null, "", `#${toHash(state)}`);
const changed = (what) => {
  state = { ...state, ...what };
  since ??= performance.now();
  // a browser complains of a link that changes too often
  clearTimeout(saving);
  saving = setTimeout(save, 250);
  ask();
};

const told = (milliseconds) => {
  find("latency").textContent = `From the last change to its picture: ${milliseconds.toFixed(0)} ms.`;
  find("latency").dataset.milliseconds = milliseconds;
};

// ---- drawing

// what is drawn, once it is: changes of single cells wait for it
let drawn = null;
const settled = () => drawn === layout(state) && state.scores !== null;
const choose = (cells) => settled() && changed({ wanted: cells });
const want = (i, j) => choose([[i, j]]);
const score = (index) => (i, j, value) => {
  if (!settled()) return;
  const scores = state.scores.map((grid) => grid.map((row) => [...row]));
  scores[index][i][j] = value;
  grids[index].show({ ...fields[index], scores: scores[index] });
  changed({ scores });
};
const descend = (descent) => {
  if (!settled()) return;
  const step = (value, i, j, index) => (value === null ? null : rounded(value + descent[index][i][j]));
  const scores = state.scores.map((grid, index) =>
    grid.map((row, i) => row.map((value, j) => step(value, i, j, index))),
  );
  changed({ scores, wanted: state.wanted.length ? state.wanted : target });
};

const chart = new Chart(find("sweep"));
const points = new Points(find("points"), want);
const gradients = new Gradients(find("gradients"), want, descend);
const sparsemap = new Cards(find("sparsemap"), choose);
const samples = new Cards(find("samples"), choose);
const grids = [];
let fields = [];
let target = [];

const draw = (answer) => {
  drawn = layout(state);
  fields = answer.fields;
  target = answer.target.cells;
  while (grids.length < fields.length) {
    const index = grids.length;
    grids.push(new Scores(score(index), index === 0 ? want : () => {}));
    const holder = element("div", "field");
    holder.append(element("h3"), grids[index].node);
    find("scores").append(holder);
  }
  [...find("scores").children].forEach((holder, index) => {
    holder.hidden = index >= fields.length;
    if (holder.hidden) return;
    holder.firstChild.textContent = fields.length > 1 || fields[index].columns.length > 1 ? fields[index].title : "";
    // a drag may have gone on since the server was asked
    grids[index].show({ ...fields[index], scores: state.scores[index] });
  });
  grids[0].frame(target);
  points.show(answer);
  sparsemap.show(answer.sparsemap.structures, answer.target);
  samples.show(answer.samples.structures, answer.target);
  find("sparsemap-note").textContent = answer.sparsemap.caption;
  find("samples-note").textContent = answer.samples.caption;
  showTarget(find("target"), answer.target);
};

// ---- controls

for (const [name, kind] of Object.entries(kinds)) {
  const label = element("label");
  const radio = element("input");
  Object.assign(radio, { type: "radio", name: "kind", value: name });
  radio.addEventListener("change", () => {
    changed(fresh(name, kind, state.seed));
    controls();
  });
  label.append(radio, element("span", "", kind.title));
  find("kinds").append(label);
}

for (const [name, [low, high]] of Object.entries(ranges)) {
  const dial = find(name);
  const scale = LOGARITHMIC.includes(name) ? [Math.log, Math.exp] : [(value) => value, (value) => value];
  Object.assign(dial, { min: scale[0](low), max: scale[0](high), step: "any" });
  dial.read = () => Math.min(high, Math.max(low, Math.round(scale[1](Number(dial.value)) * 100) / 100));
  dial.write = (value) => {
    dial.value = scale[0](value);
    dial.nextElementSibling.value = value.toFixed(2);
    dial.ariaValueText = value.toFixed(2);
  };
  // steps that can be seen, which a dial of any value has not
  dial.addEventListener("keydown", (event) => {
    const way = { ArrowUp: 1, ArrowRight: 1, ArrowDown: -1, ArrowLeft: -1, PageUp: 5, PageDown: -5 }[event.key];
    if (way === undefined) return;
    event.preventDefault();
    dial.value = Number(dial.value) + (way * (dial.max - dial.min)) / 50;
    dial.dispatchEvent(new Event("input"));
  });
  dial.addEventListener("input", () => {
    const value = dial.read();
    dial.nextElementSibling.value = value.toFixed(2);
    dial.ariaValueText = value.toFixed(2);
    chart.at(state.temperature);
    changed({ [name]: value });
  });
}

const renamed = () => {
  const [rows, columns] = [words(find("rows").value), words(find("columns").value)];
  const kind = kinds[state.kind];
  const fits = (list, names) => !names || (list.length >= names.least && list.length <= names.most);
  if (!fits(rows, kind.rows) || !fits(columns, kind.columns)) {
    const sentence = (names) => `${names.label}: ${names.least} to ${names.most} words.`;
    find("complaint").textContent = [kind.rows, kind.columns].filter(Boolean).map(sentence).join(" ");
    return;
  }
  const same = rows.length === state.rows.length && columns.length === state.columns.length;
  // the scores stay as long as there are as many words
  const scores = same ? state.scores : null;
  const k = Math.max(1, Math.min(rows.length, Math.round(Number(find("k").value)) || 1));
  changed({ rows, columns: kind.columns ? columns : [], k, scores, wanted: same ? state.wanted : [] });
};
for (const name of ["rows", "columns", "k"]) find(name).addEventListener("input", renamed);

const controls = () => {
  const kind = kinds[state.kind];
  for (const radio of document.querySelectorAll("#kinds input")) radio.checked = radio.value === state.kind;
  find("about").textContent = kind.about;
  find("rows-label").firstElementChild.textContent = kind.rows.label;
  find("rows").value = state.rows.join(" ");
  find("columns-label").hidden = kind.columns === null;
  find("columns-label").firstElementChild.textContent = kind.columns?.label || "";
  find("columns").value = state.columns.join(" ");
  find("k-label").hidden = !kind.takes_k;
  find("k").value = state.k;
  for (const name of Object.keys(ranges)) find(name).write(state[name]);
};

find("shuffle").addEventListener("click", () => changed({ scores: null, wanted: [], seed: state.seed + 1 }));
find("again").addEventListener("click", () => changed({ seed: state.seed + 1 }));
find("level").addEventListener("click", () => {
  if (!settled()) return;
  changed({ scores: state.scores.map((grid) => grid.map((row) => row.map((value) => value && 0))) });
});
find("link").addEventListener("click", async () => {
  save();
  const said = await navigator.clipboard.writeText(location.href).then(
    () => "Copied",
    () => "It is in the address bar",
  );
  find("link").textContent = said;
  setTimeout(() => (find("link").textContent = "Copy link"), 1500);
});
document.querySelector(".skip").addEventListener("click", (event) => {
  // the link keeps the state
  event.preventDefault();
  find("answers").focus();
});
document.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
window.addEventListener("hashchange", () => {
  state = linked() || state;
  controls();
  ask();
});

controls();
ask();
