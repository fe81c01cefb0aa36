// The answers: points as grids, structures as cards, gradients as grids of two colours.

import { element, Grid, signed } from "./grid.js";

// Pixels of a drawing that needs not be smaller.
const NARROW = 200;

/** A drawing of the server. It is parsed apart, where nothing runs. */
const parsed = (svg, least) => {
  const drawing = new DOMParser().parseFromString(svg, "text/html").body.firstElementChild;
  const width = Number(drawing.getAttribute("width"));
  // wide drawings are made smaller, as far as they can be read
  drawing.style.width = `${width * Math.min(1, Math.max(least, NARROW / width))}px`;
  return drawing;
};

/** As many figures as there are items, made when first needed; `fill` shows an item in one. */
class Figures {
  constructor(node, make) {
    Object.assign(this, { node, make, made: new Map() });
  }

  show(items, fill) {
    for (const item of items) {
      if (!this.made.has(item.name)) {
        this.made.set(item.name, this.make(item));
        this.node.append(this.made.get(item.name).node);
      }
      fill(this.made.get(item.name), item);
    }
  }
}

const figure = (item) => {
  const node = element("figure", "point");
  node.dataset.name = item.name;
  const title = element("figcaption", "", item.title);
  const fact = element("span", "fact");
  title.append(fact);
  const caption = element("p", "caption");
  const grids = element("div", "grids");
  node.append(title, caption, grids);
  return { node, fact, caption, holder: grids, grids: [] };
};

/** Grids of a figure, as many as there are fields; a click on a cell of the first wants its part. */
const fitted = (made, count, want) => {
  while (made.grids.length < count) {
    const index = made.grids.length;
    const grid = new Grid("shown");
    grid.prepared = (cell, i, j) => index === 0 && cell.addEventListener("click", () => want(i, j));
    made.grids.push(grid);
  }
  const wanted = made.grids.slice(0, count).map((grid) => grid.node);
  if (made.holder.childElementCount !== count) made.holder.replaceChildren(...wanted);
  return made.grids.slice(0, count);
};

export class Points {
  constructor(node, want) {
    this.want = want;
    this.figures = new Figures(node, figure);
  }

  show(answer) {
    this.figures.show(answer.points, (made, point) => {
      made.caption.textContent = point.caption;
      made.fact.textContent = point.above;
      fitted(made, point.grids.length, this.want).forEach((grid, index) => {
        grid.build(answer.fields[index], grid.prepared);
        grid.told(`${point.title}, ${answer.fields[index].title}: ${point.above}`);
        grid.probabilities(point.grids[index]);
        if (index === 0) grid.frame(answer.target.cells);
      });
    });
  }
}

export class Gradients {
  constructor(node, want, descend) {
    this.want = want;
    this.figures = new Figures(node, (row) => {
      const made = figure(row);
      made.node.classList.add("gradient");
      made.caption.textContent = row.about;
      made.button = element("button", "", "Take this step");
      made.button.type = "button";
      made.button.addEventListener("click", () => descend(made.descent));
      made.node.append(made.button);
      return made;
    });
  }

  show(answer) {
    this.figures.show(answer.gradients, (made, row) => {
      made.descent = row.descent;
      const cosine = row.cosine === null ? "" : `, cosine ${signed(row.cosine, 2)}`;
      made.fact.textContent = `loss ${row.loss.toFixed(2)}${row.norm ? cosine : ", no gradient"}`;
      made.button.disabled = row.norm === 0;
      const largest = Math.max(...row.descent.flat(2).map(Math.abs));
      fitted(made, row.descent.length, this.want).forEach((grid, index) => {
        grid.build(answer.fields[index], grid.prepared);
        grid.told(`${row.title}, ${answer.fields[index].title}: ${made.fact.textContent}`);
        grid.changes(row.descent[index], largest);
        if (index === 0) grid.frame(answer.target.cells);
      });
    });
  }
}

/** A structure as a drawing, or in words where there is none. */
const picture = (member, least) => {
  if (member.svg === null) return element("span", "words", member.words);
  const holder = element("span", "wide");
  holder.append(parsed(member.svg, least));
  return holder;
};

/** Structures with their shares; a click makes one the target. Drawings that stay are not drawn again. */
export class Cards {
  constructor(node, choose) {
    Object.assign(this, { node, choose, made: new Map() });
  }

  show(members, target) {
    const cards = members.map((member) => {
      const key = `${member.words}\n${member.svg === null}`;
      const card = this.made.get(key) || this.card(member);
      card.percent.textContent = member.label;
      card.bar.style.setProperty("--share", member.share);
      card.button.ariaPressed = String(member.words === target.words);
      return [key, card];
    });
    this.made = new Map(cards);
    const nodes = cards.map(([, card]) => card.node);
    if (nodes.length !== this.node.children.length || nodes.some((node, i) => node !== this.node.children[i])) {
      this.node.replaceChildren(...nodes);
    }
  }

  card(member) {
    const node = element("li");
    const button = element("button", "card");
    button.type = "button";
    button.ariaLabel = `Make it the target: ${member.words}`;
    button.addEventListener("click", () => this.choose(member.cells));
    const percent = element("span", "percent");
    const bar = element("span", "bar");
    button.append(percent, bar, picture(member, 0.7));
    node.append(button);
    return { node, button, percent, bar };
  }
}

export const showTarget = (node, member) => {
  if (node.dataset.words === member.words) return;
  node.dataset.words = member.words;
  node.replaceChildren(picture(member, 1));
};
