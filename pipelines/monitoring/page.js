"use strict";
// Reads status.json again and again, and shows it. Text goes into the page as text, never as HTML.

const READ_EVERY = 2000; // milliseconds
const ROWS = 12; // of the tables
const SVG = "http://www.w3.org/2000/svg";
const MINUS = "\u2212";
const NOTHING = "\u2013";
const FROM_ZERO = ["count", "users", "sum", "variance", "stddev"]; // figures of which charts begin at 0
const CALM = ["up to date", "over", "releasing", "starting", "running"];

const find = (id) => document.getElementById(id);
const chosen = new Map(); // what a person chose in a section: length, figure, bin
let latest = null; // the last answer
let readAt = 0;
let paused = false;

// ---- elements ----------------------------------------------------------------------------------

function make(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  return fill(made, attributes, children);
}

function draw(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children.filter((child) => child !== null));
  return made;
}

function say(element, text) {
  if (element.textContent !== text) element.textContent = text; // or it would be read out again
}

// ---- words and figures -------------------------------------------------------------------------

function figure(value) {
  if (value === null) return NOTHING;
  const whole = Math.abs(value) >= 100 || Number.isInteger(value);
  const text = whole
    ? Math.round(value).toLocaleString("en")
    : value.toLocaleString("en", { maximumSignificantDigits: 3 });
  return text === "-0" ? "0" : text.replace("-", MINUS);
}

const percent = (share) => `${(100 * share).toFixed(1)}%`;

function duration(seconds) {
  for (const [unit, size] of [["days", 86400], ["hours", 3600], ["minutes", 60]])
    if (seconds >= 2 * size) return `${Math.floor(seconds / size).toLocaleString("en")} ${unit}`;
  return `${Math.floor(seconds)} ${Math.floor(seconds) === 1 ? "second" : "seconds"}`;
}

// A time as 2024-01-03 00:00:00.
function time(iso) {
  return iso === null ? NOTHING : iso.replace("T", " ").replace(/([.]\d+)?Z$/, "");
}

// How to write when slots begin: no more of it than tells them apart.
function starts(slots) {
  const all = slots.map((slot) => time(slot.start));
  if (all.every((text) => text.endsWith(" 00:00:00"))) return (slot) => time(slot.start).slice(0, 10);
  const from = all.every((text) => text.slice(0, 10) === all[0].slice(0, 10)) ? 11 : 0;
  const to = all.every((text) => text.endsWith(":00")) ? 16 : 19;
  return (slot) => time(slot.start).slice(from, to);
}

const secondsTo = (iso, now) => (Date.parse(iso) - now) / 1000;

function interval([value, low, high]) {
  return low === null || high === null ? NOTHING : `${figure(low)} to ${figure(high)}`;
}

// ---- the head and the lag ----------------------------------------------------------------------

function showCondition(raw) {
  say(find("title"), `streamveil ${latest.public.command}`);
  const state = raw.condition[0].toUpperCase() + raw.condition.slice(1);
  say(find("state"), state);
  say(find("words"), raw.words);
  announce(raw.condition);
  document.title = `${state} – streamveil ${latest.public.command}`;
  const kind = CALM.includes(raw.condition) ? "" : raw.condition === "waiting" ? "waits" : "alarm";
  find("condition").className = `condition ${kind}`;
}

function showLag(lag) {
  const now = Date.parse(latest.time) + (performance.now() - readAt);
  const clock = lag.clock_file || lag.clock === null ? Date.parse(lag.clock) : now;
  const cards = [
    ["Last release", lag.released_at, lag.released_at && `${duration(Math.max(0, -secondsTo(lag.released_at, now)))} ago`,
      `${time(lag.released_at)} UTC`],
    ["Released up to", lag.released_until, time(lag.released_until), lag.event_seconds === null ? "UTC"
      : `UTC; the clock is ${duration(lag.event_seconds)} further`],
    ["Lag", lag.clock, lag.backlog_slots ? duration(lag.seconds) : "none",
      !lag.backlog_slots ? "no closed slot is open" : lag.backlog_slots === 1 ? "since the one closed slot closed"
        : `since the oldest of ${lag.backlog_slots.toLocaleString("en")} closed slots closed`],
    ["Next slot closes", lag.next_closes, lag.next_closes && (secondsTo(lag.next_closes, clock) > 0
      ? `in ${duration(secondsTo(lag.next_closes, clock))}` : "now"), `${time(lag.next_closes)} UTC`],
    ["Delay of the last release", lag.release_delay_seconds, lag.release_delay_seconds !== null && duration(lag.release_delay_seconds),
      "from the closing of its slot"],
    ["Last check", lag.looked_at, lag.looked_at && `${duration(Math.max(0, -secondsTo(lag.looked_at, now)))} ago`,
      lag.pass_since ? "a pass is under way" : "for slots to release"],
    ["Passes of this run", lag.passes, lag.passes.toLocaleString("en"), lag.passes
      ? `the longest took ${duration(lag.longest_pass_seconds)}` : "none yet"],
  ];
  if (lag.clock_file) cards.push(["Clock of the stream", lag.clock, time(lag.clock), "UTC, by --clock_file"]);
  showCards(find("lags"), cards);
}

// Reads out what matters: not that each slot of a stream that is well is about to be released.
function announce(condition) {
  say(find("announced"), CALM.includes(condition) ? "The stream is well." : `The stream is ${condition}.`);
}

// Elements stay, and only their text changes, so that a reader keeps the place.
function showCards(list, cards) {
  while (list.children.length > cards.length) list.lastChild.remove();
  while (list.children.length < cards.length)
    list.append(make("div", {}, make("dt"), make("dd", {}, make("b"), make("span"))));
  cards.forEach(([name, known, value, about], i) => {
    const there = known !== null && known !== undefined;
    const [title, figures] = list.children[i].children;
    say(title, name);
    say(figures.children[0], there ? value : NOTHING);
    say(figures.children[1], there ? about : "not known yet");
  });
}

// ---- what was released -------------------------------------------------------------------------

function choice(section, name, label, options, start, redraw) {
  const key = `${section.name} ${name}`;
  if (!options.includes(chosen.get(key))) chosen.delete(key);
  const select = make("select", {}, ...options.map((one) => make("option", {}, one)));
  // By index: the value of an option is its text without the spaces that a name may have.
  select.selectedIndex = options.indexOf(chosen.get(key) ?? start);
  select.addEventListener("change", () => {
    chosen.set(key, options[select.selectedIndex]);
    redraw();
  });
  const element = options.length > 1 ? make("label", {}, label, select) : null;
  return [element, select.selectedIndex];
}

function showSections(sections) {
  const place = find("sections");
  const held = document.activeElement && place.contains(document.activeElement)
    ? [...place.querySelectorAll("select, [tabindex]")].indexOf(document.activeElement) : -1;
  place.replaceChildren(...sections.map(section));
  const again = [...place.querySelectorAll("select, [tabindex]")][held];
  if (again) again.focus({ preventScroll: true });
  for (const resized of place.querySelectorAll(".chart")) resized.redraw();
}

function section(given, index) {
  const id = `section-${index}`;
  const redraw = () => showSections(latest.public.sections);
  const [lengths, l] = choice(given, "length", "Slots of", given.series.map((one) => one.length), given.series[0].length, redraw);
  const series = given.series[l];
  const [figures, f] = choice(given, "figure", "Figure", given.figures, given.figures[0], redraw);
  const [bins, b] = choice(given, "bin", "Bin", series.shown, series.shown[series.first], redraw);
  const parts = [
    make("h2", { id: `${id}-title` }, given.name, " ", make("small", {}, "released")),
    make("p", {}, `${given.about} In slots of ${series.length}, with intervals of 90%.`),
  ];
  if (!series.slots.length) parts.push(make("p", { class: "muted" }, "No slot is released yet."));
  else {
    const points = series.slots.map((slot) => ({
      slot,
      cell: slot.values[b][f],
      later: slot.revised && slot.revised[b][f],
      note: slot.notes && slot.notes[b][f],
    }));
    const start = starts(series.slots);
    const what = series.bins > 1 ? `${given.figures[f]} of ${series.shown[b]}` : given.figures[f];
    const from = time(points[0].slot.start), to = time(points[points.length - 1].slot.end);
    parts.push(
      make("div", { class: "choices" }, bins, figures, lengths),
      series.bins > series.shown.length ? make("p", { class: "muted" },
        `${series.shown.length} of ${series.bins.toLocaleString("en")} bins, with the largest or the most certain recent results.`) : null,
      make("figure", {}, chart(points, start, FROM_ZERO.includes(given.figures[f]), axisOf(given, series, f), `${what}: chart of the last ${points.length} slots; the newest are in the table below`),
        make("figcaption", {}, `${what}, in ${given.unit}: the last ${points.length} slots, from ${from} to ${to} UTC. Bands are intervals of 90%.`,
          points.some((p) => !fresh(p.slot.status)) ? " Thin steps have no new measurement." : "")),
      make("div", { class: "tables" }, slotTable(points, start, given.figures[f], what),
        series.bins > 1 ? binTable(series, start, f, given) : null),
    );
  }
  return make("section", { id, "aria-labelledby": `${id}-title` }, ...parts.filter(Boolean));
}

// What the axis of a figure says: counts are of a slot.
function axisOf(given, series, f) {
  return ["count", "users"].includes(given.figures[f]) ? `${given.unit} per ${series.span}` : given.unit;
}

const fresh = (status) => status === "published" || status === "";

function table(label, caption, heads, rows) {
  const made = make("table", {}, make("caption", {}, caption),
    make("thead", {}, make("tr", {}, ...heads.map(([text, kind]) => make("th", { scope: "col", class: kind ?? "" }, text)))),
    make("tbody", {}, ...rows));
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, made);
}

function slotTable(points, start, name, what) {
  const newest = points.slice(-ROWS).reverse();
  const revised = points.some((p) => p.later);
  const rows = newest.map(({ slot, cell, later, note }) => make("tr", {},
    make("th", { scope: "row", class: "when" }, start(slot)),
    make("td", {}, figure(cell[0])), make("td", {}, interval(cell)),
    revised ? make("td", {}, later ? make("span", { class: "late" }, figure(later[0]), make("br"), make("small", {}, interval(later))) : NOTHING) : null,
    make("td", { class: "text" }, slot.status, note ? make("small", {}, ` ${note}`) : null)));
  return table(`Newest slots: ${what}`, `The newest slots: ${what}`,
    [["Start, UTC"], [name], ["Interval of 90%"], ...(revised ? [["Revised"]] : []), ["Status", "text"]], rows);
}

function binTable(series, start, f, given) {
  const newest = series.slots[series.slots.length - 1];
  const rank = (j) => (newest.ranks && newest.ranks[j]) || 1e9;
  const value = (j) => newest.values[j][f][0] ?? -1e300;
  const order = newest.values.map((_, j) => j).sort((i, j) => rank(i) - rank(j) || value(j) - value(i));
  const rows = order.slice(0, ROWS).map((j) => make("tr", {},
    make("th", { scope: "row" }, newest.ranks && newest.ranks[j] ? `${newest.ranks[j]}. ` : "", series.shown[j]),
    make("td", {}, figure(newest.values[j][f][0])), make("td", {}, interval(newest.values[j][f]))));
  const some = rows.length < series.bins ? ` (${rows.length} of ${series.bins.toLocaleString("en")} bins)` : "";
  return table(`Newest slot of ${given.name}, bin by bin`, `The slot of ${start(newest)}, bin by bin${some}`,
    [["Bin"], [given.figures[f]], ["Interval of 90%"]], rows);
}

// ---- the chart ---------------------------------------------------------------------------------

// It is drawn for the width that it has, so that its text has one size everywhere.
function chart(points, start, fromZero, unit, label) {
  const made = draw("svg", { class: "chart", role: "img", "aria-label": label });
  made.redraw = () => {
    const { width, height } = made.getBoundingClientRect();
    if (!width) return;
    made.setAttribute("viewBox", `0 0 ${width} ${height}`);
    made.replaceChildren(...marks(points, start, fromZero, unit, width, height));
  };
  return made;
}

function ticks(low, high, number) {
  const rough = (high - low) / number;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((k) => k * power).find((each) => each >= rough);
  const found = [];
  for (let k = Math.ceil(low / step); k * step <= high; k += 1) found.push(k * step);
  return found;
}

// Titles of the axes are where those of all pages are: that of y above it, that of x below.
function marks(points, start, fromZero, unit, width, height) {
  const cells = points.flatMap((p) => [p.cell, p.later]).filter((cell) => cell && cell[0] !== null);
  if (!cells.length) return [draw("text", { x: 8, y: 20 }, "nothing is known of it yet")];
  const all = cells.flat().filter((value) => value !== null);
  if (fromZero) all.push(0);
  let low = Math.min(...all), high = Math.max(...all);
  if (low > 0 && low < high / 2) low = 0;
  const room = 0.05 * (high - low || Math.abs(high) || 1);
  if (low !== 0) low -= room;
  high += room;
  const levels = ticks(low, high, Math.max(2, Math.floor(height / 45)));
  const left = 12 + 7 * Math.max(...levels.map((level) => figure(level).length));
  const right = width - 62, bottom = height - 38, top = 22;
  const y = (value) => bottom - ((value - low) / (high - low)) * (bottom - top);
  const step = (right - left) / points.length;
  const x = (i) => left + (i + 0.5) * step;
  const path = (d, kind) => draw("path", { class: kind, d });
  const drawn = levels.flatMap((level) => [
    path(`M${left} ${y(level)}H${right}`, level === 0 ? "zero" : "grid"),
    draw("text", { x: left - 6, y: y(level) + 4, "text-anchor": "end" }, figure(level)),
  ]);
  drawn.push(draw("text", { x: 0, y: 12 }, unit),
    draw("text", { x: right, y: bottom + 32, "text-anchor": "end" }, "start of the slot, UTC"));
  const wide = 7 * start(points[0].slot).length + 20;
  let free = width + wide; // left edge of the label before
  for (let i = points.length - 1; i >= 0; i -= 1) {
    const at = Math.min(x(i), width - wide / 2 + 10);
    if (at + wide / 2 > free || at - wide / 2 < 0) continue;
    free = at - wide / 2;
    drawn.push(draw("text", { x: at, y: bottom + 16, "text-anchor": "middle" }, start(points[i].slot)));
  }
  const line = (value, kind) => path(steps(points.map(value), y, left, step), kind);
  for (const [i, { slot, cell }] of points.entries()) {
    const from = left + i * step, [value, least, most] = cell;
    if (least !== null && most !== null) drawn.push(path(`M${from} ${y(least)}H${from + step}V${y(most)}H${from}Z`, "range"));
    if (value !== null) drawn.push(draw("rect", { class: "hover", x: from, y: top, width: step, height: bottom - top },
      draw("title", {}, `${start(slot)}: ${figure(value)} (${interval(cell)})`)));
  }
  drawn.push(line((p) => p.cell[0], "released"),
    line((p) => fresh(p.slot.status) ? p.cell[0] : null, "fresh"),
    line((p) => p.later ? p.later[0] : null, "later"));
  return [...drawn, ...names(points, y, right, bottom)];
}

// A line that is level over each slot, with a gap where nothing is known.
function steps(values, y, left, step) {
  return values.map((value, i) => value === null ? ""
    : `${i && values[i - 1] !== null ? "V" : `M${left + i * step} `}${y(value)}H${left + (i + 1) * step}`).join("");
}

// The names of the lines, behind their ends, lowest first.
function names(points, y, right, bottom) {
  const last = (values) => values.filter((value) => value !== null).pop();
  const ends = [["released", last(points.map((p) => p.cell[0]))], ["revised", last(points.map((p) => p.later ? p.later[0] : null))]];
  let place = bottom + 4;
  return ends.filter(([, value]) => value !== undefined).sort(([, one], [, other]) => one - other).map(([name, value]) => {
    const at = Math.min(y(value) + 4, place);
    place = at - 14;
    return draw("text", { class: name, x: right + 7, y: at }, name);
  });
}

// ---- budget, events, warnings ------------------------------------------------------------------

function showBudget({ budget, has_ledger: kept }) {
  const place = find("budgets");
  if (!budget) {
    place.replaceChildren(make("p", { class: "muted" }, kept
      ? "Nothing is spent yet." : "The run keeps no ledger: start it with a ledger to see what each class of users has spent."));
    return;
  }
  const rows = budget.shown.map((row) => make("tr", {},
    make("th", { scope: "row" }, row.window === null ? "whole stream"
      : `${row.window.toLocaleString("en")} ${row.window === 1 ? "slot" : "slots"} of ${budget.length}`),
    make("td", {}, figure(row.epsilon)), make("td", {}, row.users ? row.users.toLocaleString("en") : NOTHING),
    make("td", {}, percent(row.share)), make("td", { class: "over" }, bar(row.share))));
  const some = budget.shown.length < budget.classes
    ? `the ${budget.shown.length} of ${budget.classes.toLocaleString("en")} classes of users that are nearest to their limits` : "every class of users";
  place.replaceChildren(table("Budget by class", `Spent in the window that ends at ${time(budget.until)} UTC: ${some}`,
    [["Window"], ["Budget ε"], ["Users"], ["Spent"], ["", "over"]], rows));
}

function bar(share) {
  const part = Math.min(100, 100 * share);
  return draw("svg", { class: "bar", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
    draw("rect", { class: "all", width: 100, height: 10, rx: 1 }),
    draw("rect", { class: share > 1.000001 ? "part full" : "part", width: part, height: 10, rx: 1 }));
}

function showEvents(events) {
  const row = (name, number, about = "") => make("tr", {}, make("th", { scope: "row" }, name),
    make("td", {}, number.toLocaleString("en")), make("td", { class: "text" }, make("small", {}, about)));
  const rejected = Object.entries(events.rejected);
  const total = rejected.reduce((sum, [, number]) => sum + number, 0);
  const rows = [row("Read", events.read)];
  if (!events.queries) rows.push(row("Counted", events.counted));
  rows.push(row("Rejected", total, rejected.map(([why, n]) => `${why} ${n.toLocaleString("en")}`).join(", ")),
    row("Late", events.late, "arrived after their slot was released"));
  if (!events.queries) rows.push(
    row("Beyond the bound", events.beyond_bound, "more events of a user in a slot than the contribution bound"),
    row("Beyond the limit", events.beyond_limit, "dropped by the participation limit"));
  const parts = [table("Event accounting", `Of this run, since ${time(events.since)} UTC`,
    [["Events"], ["Number"], ["", "text"]], rows)];
  if (events.queries) parts.push(table("Event accounting, by query", "By query; an event counts in each that it matches",
    [["Query"], ["Counted"], ["Beyond the bound"], ["Could not be read"]],
    Object.entries(events.queries).map(([name, q]) => make("tr", {}, make("th", { scope: "row" }, q.title || name),
      make("td", {}, q.counted.toLocaleString("en")), make("td", {}, q.beyond_bound.toLocaleString("en")),
      make("td", {}, Object.entries(q.unread).map(([why, n]) => `${why} ${n.toLocaleString("en")}`).join(", ") || "0")))));
  find("counters").replaceChildren(...parts);
}

function showWarnings(warnings) {
  const place = find("warned");
  if (!warnings.length) place.replaceChildren(make("p", { class: "muted" }, "None since the run began."));
  else place.replaceChildren(make("ul", { class: "warned" }, ...warnings.map(({ time: when, words, times }) =>
    make("li", {}, words, make("small", { class: "muted" },
      ` ${[when && `${time(when)} UTC`, times > 1 && `${times} times`].filter(Boolean).join(", ")}`)))));
}

function showContents(sections) {
  const links = [["#lag", "lag"], ...sections.map((one, i) => [`#section-${i}`, one.name]),
    ["#budget", "budget"], ["#events", "events"], ["#warnings", "warnings"]];
  find("contents").replaceChildren(...links.map(([to, name]) => make("li", {}, make("a", { href: to }, name))));
}

// ---- reading -----------------------------------------------------------------------------------

function changed(name, value, show) {
  const text = JSON.stringify(value);
  if (changed[name] === text) return;
  changed[name] = text;
  show(value);
}

function show() {
  showCondition(latest.raw);
  showLag(latest.raw.lag);
  changed("contents", latest.public.sections.map((one) => one.name), () => showContents(latest.public.sections));
  changed("sections", latest.public.edition, () => showSections(latest.public.sections));
  changed("budget", [latest.public.budget, latest.public.has_ledger], () => showBudget(latest.public));
  changed("events", latest.raw.events, showEvents);
  changed("warnings", latest.raw.warnings, showWarnings);
}

function lost(why) {
  say(find("state"), "No answer");
  say(find("words"), `The run does not answer (${why}): it has ended, or this page cannot reach it. The numbers below are old. See its log, and status.json in its state folder.`);
  say(find("announced"), "The run does not answer.");
  find("condition").className = "condition alarm";
  document.title = "No answer – streamveil";
  if (latest) showLag(latest.raw.lag); // what was some time ago is longer ago by now
}

async function read() {
  try {
    const answer = await fetch("status.json", { cache: "no-store", signal: AbortSignal.timeout(15000) });
    if (!answer.ok) throw new Error(await answer.text());
    latest = await answer.json();
    readAt = performance.now();
    show();
  } catch (error) {
    lost(error.message);
  }
}

async function readAgain() {
  if (!paused && !document.hidden) await read();
  setTimeout(readAgain, READ_EVERY);
}

find("pause").addEventListener("click", () => {
  paused = !paused;
  say(find("pause"), paused ? "Resume updates" : "Pause updates");
});
setInterval(() => {
  if (latest) say(find("age"), paused ? "paused" : `read ${duration((performance.now() - readAt) / 1000)} ago`);
}, 1000);
addEventListener("resize", () => {
  for (const resized of document.querySelectorAll(".chart")) resized.redraw();
});
readAgain();
