/* SPDX-License-Identifier: Apache-2.0 */
// What the charts need of a browser, where there is none: elements that become the text of an SVG, and the part of a
// canvas's context that cells.js uses. `gdnbench/page/png.py` runs it, with the page's data in `indexText`.
import { svg } from "./dom.js";

// What the font has. Anything else is shown as an escape.
const UNKNOWN = /[^\n\u0020-\u007e\u00a0-\u00ff\u2013\u2026\u2260\u2264\u2713\u2717]/gu;
const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };

function escaped(text) {
  return text.replace(UNKNOWN, (one) => `\\u${one.codePointAt(0).toString(16).padStart(4, "0")}`)
    .replace(/[&<>"]/g, (one) => ENTITIES[one]);
}

// Hundredths of a pixel are enough, and are the same whatever library computes logarithms.
function rounded(value) {
  return typeof value === "number" ? Math.round(value * 100) / 100 : String(value).replace(/\d+\.\d{3,}/g, (digits) => String(Math.round(digits * 100) / 100));
}

class Node {
  constructor(tag) {
    this.tag = tag;
    this.attributes = [];
    this.children = [];
  }

  setAttribute(name, value) {
    this.attributes.push(` ${name}="${escaped(String(rounded(value)))}"`);
  }

  append(child) {
    this.children.push(child instanceof Node ? child : escaped(child));
  }

  toString() {
    return `<${this.tag}${this.attributes.join("")}>${this.children.join("")}</${this.tag}>`;
  }
}

const document = {
  createElementNS: (_, tag) => new Node(tag),
  getElementById: () => ({ textContent: indexText }),
};

const ANCHORS = { left: "start", center: "middle", right: "end" };

// Draws what a canvas's context would, as SVG `shapes`. Rectangles of one colour are one path.
class SvgContext {
  constructor() {
    this.filled = new Map();
    this.drawn = [];
  }

  get shapes() {
    return [Array.from(this.filled, ([fill, paths]) => svg("path", { class: "cells", style: `fill:${fill}`, d: paths.join("") })),
      this.drawn];
  }

  fillRect(x, y, width, height) {
    if (!this.filled.has(this.fillStyle)) this.filled.set(this.fillStyle, []);
    this.filled.get(this.fillStyle).push(`M${rounded(x)} ${rounded(y)}h${rounded(width)}v${rounded(height)}h-${rounded(width)}z`);
  }

  strokeRect(x, y, width, height) {
    this.drawn.push(svg("rect", { x, y, width, height, fill: "none", stroke: this.strokeStyle, "stroke-width": this.lineWidth }));
  }

  beginPath() {
    this.path = "";
  }

  moveTo(x, y) {
    this.path += `M${x} ${y}`;
  }

  lineTo(x, y) {
    this.path += `L${x} ${y}`;
  }

  stroke() {
    this.drawn.push(svg("path", { d: this.path, stroke: this.strokeStyle, "stroke-width": this.lineWidth }));
  }

  fillText(text, x, y) {
    this.drawn.push(svg("text", { x, y: y + 4, "text-anchor": ANCHORS[this.textAlign] }, text));
  }

  measureText(text) {
    return { width: 7.5 * text.length };
  }
}

export function svgContext() {
  return new SvgContext();
}
