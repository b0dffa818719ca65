"use strict";
// Everything a model wrote is put into the page as text (textContent), never as markup.
const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

function make(name, properties = {}, ...children) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// --- matrix: split and metric -------------------------------------------------------------------------------------------------------

function showMatrix() {
  const split = $("[data-split][aria-pressed=true]")?.dataset.split;
  const metric = $("#metric")?.value;
  for (const part of $$("[data-of-split]")) {
    part.hidden = part.dataset.ofSplit !== split || (part.dataset.ofMetric !== undefined && part.dataset.ofMetric !== metric);
  }
}

for (const button of $$("button[data-split]")) {
  button.addEventListener("click", () => {
    for (const other of $$("button[data-split]")) other.setAttribute("aria-pressed", String(other === button));
    showMatrix();
  });
}
$("#metric")?.addEventListener("change", showMatrix);
showMatrix();

// --- curves: read a value under the pointer -----------------------------------------------------------------------------------------

for (const chart of $$(".chart")) {
  const points = chart.dataset.points.split(",").map((pair) => pair.split(":").map(Number));
  const output = $("output", chart), svg = $("svg", chart), last = output.textContent;
  const [, , width] = svg.getAttribute("viewBox").split(" ").map(Number);
  const left = Number(chart.dataset.left), right = width - 8, span = points.at(-1)[0] - points[0][0];
  const cursor = document.createElementNS(svg.namespaceURI, "line");
  cursor.classList.add("cursor");
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const across = ((event.clientX - box.left) / box.width * width - left) / (right - left);
    const wanted = points[0][0] + across * span;
    const point = points.reduce((a, b) => (Math.abs(b[0] - wanted) < Math.abs(a[0] - wanted) ? b : a));
    const x = span ? left + (point[0] - points[0][0]) / span * (right - left) : (left + right) / 2;
    for (const [key, value] of Object.entries({ x1: x, x2: x, y1: 8, y2: 112 })) cursor.setAttribute(key, value);
    svg.append(cursor);
    output.textContent = `step ${point[0]}: ${point[1]}`;
  });
  svg.addEventListener("pointerleave", () => { cursor.remove(); output.textContent = last; });
}

// --- rollouts -----------------------------------------------------------------------------------------------------------------------

const { rows, left_out: leftOut, follow } = JSON.parse($("#rollout-data").textContent);
const filters = { stage: "", task: "", split: "", verdict: "" };
const view = { shown: [], at: 0, tokens: true, surprise: false };
const MARKS = { full: "●", partial: "◐", zero: "○", unscored: "◌" };
const WORDS = { full: "Full marks", partial: "Partial marks", zero: "No marks", unscored: "Unscored" };

function verdict(row) {
  const value = row.reward ? row.reward.value : null;
  if (value === null) return "unscored";
  return value >= 1 - 1e-9 ? "full" : value <= 1e-9 ? "zero" : "partial";
}

const figure = (value) => (value === null || value === undefined ? "–" : String(Math.round(value * 1000) / 1000));
const badge = (row) => make("span", { className: `verdict ${verdict(row)}` }, `${MARKS[verdict(row)]} ${figure(row.reward?.value)}`);
const sampledText = (row) => row.segments.filter((part) => part.tokens).map((part) => part.tokens.join("")).join(" ");

function passes(row, without) {
  const has = { stage: row.stage, task: row.task, split: row.split, verdict: verdict(row) };
  return Object.entries(filters).every(([key, wanted]) => key === without || !wanted || has[key] === wanted);
}

function fillFilters() {
  for (const [key, select] of $$("select[data-filter]").map((each) => [each.dataset.filter, each])) {
    const values = new Map();
    for (const row of rows.filter((each) => passes(each, key))) {
      const value = key === "verdict" ? verdict(row) : row[key];
      values.set(value, (values.get(value) || 0) + 1);
    }
    if (filters[key] && !values.has(filters[key])) values.set(filters[key], 0);
    const all = [...values.values()].reduce((a, b) => a + b, 0);
    select.replaceChildren(
      make("option", { value: "" }, `all (${all})`),
      ...[...values].map(([value, count]) => make("option", { value }, `${WORDS[value] || value} (${count})`)),
    );
    select.value = filters[key];
  }
}

function choose(change = {}) {
  Object.assign(filters, change);
  view.shown = rows.filter((row) => passes(row));
  view.at = 0;
  fillFilters();
  const list = $("#list");
  list.replaceChildren(...view.shown.map((row, place) => {
    const start = sampledText(row).slice(0, 200).replace(/\s+/g, " ").trim();
    const where = [row.task, row.step === undefined ? row.split : `step ${row.step}`, row.stage, `${row.num_tokens} tokens`].join(" · ");
    const button = make("button", { type: "button" }, badge(row), make("span", {}, start || "(nothing)"),
      make("small", {}, where));
    button.addEventListener("click", () => select(place));
    return make("li", {}, button);
  }));
  const missing = leftOut.filter((each) => ["stage", "task", "split"].every((key) => !filters[key] || filters[key] === each[key]));
  const num = missing.reduce((sum, each) => sum + each.num, 0);
  $("#count").textContent = `${view.shown.length} shown` + (num ? `; ${num.toLocaleString("en")} more of these are in the run folder` : "");
  select(0);
}

function select(place) {
  view.at = place;
  $$("#list button").forEach((button, i) => {
    button.setAttribute("aria-current", String(i === place));
    button.tabIndex = i === place ? 0 : -1;
    if (i === place) scrollTo(button);
  });
  draw();
}

// Scrolls the list alone: scrollIntoView would move the page as well.
function scrollTo(button) {
  const list = $("#list"), top = button.offsetTop - list.offsetTop;
  if (top < list.scrollTop) list.scrollTop = top;
  if (top + button.offsetHeight > list.scrollTop + list.clientHeight) list.scrollTop = top + button.offsetHeight - list.clientHeight;
}

function tokenSpans(row) {
  const said = row.messages.filter((message) => message.role === "assistant");
  let turn = -1, context = true;
  return row.segments.flatMap((part) => {
    if (part.kind === "cut") return [make("span", { className: "cut" }, part.text)];
    if (part.kind === "context") {
      context = true;
      return [make("span", { className: "context", title: `context, ${part.num_tokens} tokens${part.fork ? " (a fork)" : ""}` }, part.text)];
    }
    if (context) turn += 1;
    context = false;
    const text = part.tokens.join(""), thought = (said[turn]?.thinking || "").trim();
    const from = thought ? text.indexOf(thought) : -1, to = from + thought.length;
    let offset = 0;
    return part.tokens.map((token, i) => {
      const thinking = from >= 0 && offset < to && offset + token.length > from;
      offset += token.length;
      const logp = part.logps[i];
      const known = typeof logp === "number";
      const title = `${part.kind}${thinking ? ", thinking" : ""}${known ? `; log-prob ${logp}, probability ${Math.exp(logp).toPrecision(3)}` : ""}`;
      const span = make("span", { className: `token ${part.kind}${thinking ? " thinking" : ""}`, title });
      span.style.setProperty("--s", known ? Math.min(1, -logp / 5) : 0);
      token.split("\n").forEach((line, j) => {
        if (j) span.append(make("span", { className: "marks", ariaHidden: "true" }, "⏎"), "\n");
        span.append(line);
      });
      return span;
    });
  });
}

function conversation(row) {
  const prompt = row.segments.find((part) => part.kind === "context");
  const parts = prompt ? [make("div", { className: "message" }, make("b", {}, "prompt, as rendered"), make("p", {}, prompt.text))] : [];
  for (const message of row.messages) {
    parts.push(make("div", { className: `message ${message.role}` }, make("b", {}, message.role),
      message.thinking === undefined ? null : make("p", { className: "thinking" }, message.thinking || "(empty thinking)"),
      message.content ? make("p", {}, message.content) : null,
      ...(message.tool_calls || []).map((call) => make("code", {}, `${call.name}(${JSON.stringify(call.arguments)})`))));
  }
  return parts;
}

function key(className, text) {
  return make("span", {}, make("span", { className: `token ${className}` }, "abc"), ` ${text}`);
}

function toggle(text, pressed, act) {
  const button = make("button", { type: "button" }, text);
  button.setAttribute("aria-pressed", String(pressed));
  button.addEventListener("click", () => { act(); draw(); });
  return button;
}

function draw() {
  const row = view.shown[view.at], detail = $("#detail");
  if (!row) return detail.replaceChildren(make("p", { className: "absent" }, "No rollout of this kind was kept."));
  const facts = [`${row.stage}`, row.step === undefined ? "evaluation" : `step ${row.step}`, row.split, `${row.domain} domain`,
    row.version === undefined ? null : `weights ${row.version}`, `${row.num_tokens} tokens sampled`,
    row.finish === "length" ? "ended at the token limit" : row.finish === "turns" ? "ended at the turn limit" : "ended by itself",
    row.format_errors ? `${row.format_errors} malformed tool calls` : null,
    row.advantage === undefined ? null : `advantage ${figure(row.advantage)}`];
  const parts = Object.entries(row.reward?.parts || {}).map(([name, value]) => `${name} ${figure(value)}`).join(", ");
  const group = rows.filter((each) => each.prompt === row.prompt && each.stage === row.stage && each.step === row.step && each.task === row.task);
  const chips = group.map((each) => {
    const chip = make("button", { type: "button" }, badge(each));
    chip.setAttribute("aria-pressed", String(each === row));
    chip.addEventListener("click", () => {
      if (!view.shown.includes(each)) choose({ verdict: "" });
      select(view.shown.indexOf(each));
    });
    return chip;
  });
  const text = make("div", { className: `text${view.surprise ? " surprise" : ""}`, tabIndex: 0, role: "region", ariaLabel: "tokens" });
  if (view.tokens) text.append(...tokenSpans(row));
  const kinds = new Set(row.segments.map((part) => part.kind));
  detail.replaceChildren(
    make("h3", {}, badge(row), make("span", {}, `${row.task}: ${row.prompt}`)),
    make("p", { className: "why" }, make("b", {}, `${WORDS[verdict(row)]}. `), row.reward ? row.reward.why || "(no reason given)" : "not graded",
      parts ? make("small", {}, `  ${parts}`) : null),
    make("p", { className: "facts" }, facts.filter(Boolean).join(" · ")),
    followLink(row),
    group.length > 1 ? make("div", { className: "group" }, "group: ", ...chips) : "",
    make("div", { className: "controls" },
      make("div", { className: "switch", role: "group", ariaLabel: "view" },
        toggle("tokens", view.tokens, () => { view.tokens = true; }), toggle("conversation", !view.tokens, () => { view.tokens = false; })),
      view.tokens ? toggle("shade by surprise", view.surprise, () => { view.surprise = !view.surprise; }) : null,
      view.tokens ? make("p", { className: "keys" }, make("span", { className: "context" }, "grey: context"),
        kinds.has("sampled") ? key("sampled", "sampled") : null, kinds.has("trained") ? key("trained", "sampled and trained") : null,
        key("thinking", "thinking")) : null),
    ...(view.tokens ? [text] : conversation(row)),
  );
}

if ($("#list")) {
  for (const each of $$("select[data-filter]")) each.addEventListener("change", () => choose({ [each.dataset.filter]: each.value }));
  $("#list").addEventListener("keydown", (event) => {
    const move = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 }[event.key];
    if (!move || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    select(Math.max(0, Math.min(view.shown.length - 1, view.at + move)));
    $("#list [aria-current=true]")?.focus({ preventScroll: true });
  });
  for (const cell of $$(".matrix a")) {
    cell.addEventListener("click", () => {
      const { stage, task, split } = cell.dataset;
      const any = rows.some((row) => row.stage === stage && row.task === task && row.split === split);
      choose({ stage, task, split: any ? split : "", verdict: "" });
    });
  }
  choose({ stage: rows.at(-1).stage }); // the latest is what one comes for
}

// --- one prompt through all stages --------------------------------------------------------------------------------------------------

const following = { split: "", task: "", prompt: "" };

function options(id, values, wanted) {
  const select = $(`#follow-${id}`), all = [...new Set(values)];
  select.replaceChildren(...all.map((value) => make("option", { value }, value)));
  select.value = following[id] = all.includes(wanted) ? wanted : all[0];
}

function follows(change = {}) {
  const wanted = { ...following, ...change };
  options("split", follow.prompts.map((each) => each.split), wanted.split);
  options("task", follow.prompts.filter((each) => each.split === following.split).map((each) => each.task), wanted.task);
  const here = follow.prompts.filter((each) => each.split === following.split && each.task === following.task);
  options("prompt", here.map((each) => each.prompt), wanted.prompt);
  const one = here.find((each) => each.prompt === following.prompt);
  const asked = rows.find((row) => ofEvaluation(row, one));
  $("#follow-asked").replaceChildren(...(asked ? conversation(asked).slice(0, 1) : []));
  $("#follow-stages").replaceChildren(...follow.stages[one.split].map((stage, place) => followed(one, stage, one.scores[place])));
}

const ofEvaluation = (row, one) => row.step === undefined && ["split", "task", "prompt"].every((key) => row[key] === one[key]);

function followed(one, stage, scores) {
  const answers = rows.filter((row) => row.stage === stage && ofEvaluation(row, one));
  const known = (scores || []).filter((score) => score !== null), mean = known.length ? known.reduce((a, b) => a + b, 0) / known.length : null;
  const told = answers.slice(0, 4).map((row) => make("div", { className: "answer" },
    make("p", { className: "why" }, badge(row), ` ${row.reward ? row.reward.why : "not graded"}`), ...conversation(row).slice(1)));
  return make("section", {}, make("h3", {}, stage, make("small", {}, scores ? ` ${figure(mean)}${scores.length > 1 ? ` over ${scores.length}` : ""}` : " not measured")),
    ...(told.length ? told : [make("p", { className: "absent" }, "Its answer was not kept.")]));
}

function followLink(row) {
  if (row.step !== undefined || !follow.prompts.some((each) => each.split === row.split && each.prompt === row.prompt)) return null;
  const button = make("button", { type: "button" }, "follow this prompt through all stages");
  button.addEventListener("click", () => {
    follows({ split: row.split, task: row.task, prompt: row.prompt });
    $("#prompts").scrollIntoView();
  });
  return button;
}

if ($("#follow-stages")) {
  for (const id of ["split", "task", "prompt"]) $(`#follow-${id}`).addEventListener("change", (event) => follows({ [id]: event.target.value }));
  follows();
}
