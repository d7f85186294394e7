// Scripts of the pages: questions before actions that cannot be undone, ticks, the slider, the curves of the overview.
(function () {
  "use strict";

  document.addEventListener("submit", function (event) {
    var by = event.submitter;
    var asked = (by && by.getAttribute("data-confirm")) || event.target.getAttribute("data-confirm");
    if (asked && !window.confirm(asked)) event.preventDefault();
  });

  var unfolded = {};

  // A refreshed list has a new button.
  function show() { document.querySelectorAll("[data-tick-all]").forEach(function (button) { button.hidden = false; }); }
  show();
  document.addEventListener("htmx:afterSwap", show);
  document.addEventListener("click", function (event) {
    if (!event.target.matches("[data-tick-all]")) return;
    var boxes = Array.from(event.target.form.querySelectorAll("input[name=id]"));
    var every = boxes.every(function (box) { return box.checked; });
    boxes.forEach(function (box) { box.checked = !every; });
    tell(event.target.form);
  });

  // A link to a folded part unfolds it.
  function unfold() {
    var part = location.hash && document.getElementById(location.hash.slice(1));
    if (part && part.tagName === "DETAILS") { part.open = true; part.scrollIntoView(); }
  }
  unfold();
  window.addEventListener("hashchange", unfold);

  // Show how many tasks are ticked, and choose "ticked" once one is.
  document.addEventListener("change", function (event) {
    if (event.target.name !== "id" || !event.target.form) return;
    tell(event.target.form);
  });

  function tell(form) {
    var said = form.querySelector("[data-ticked]");
    if (said) said.textContent = "(" + form.querySelectorAll("input[name=id]:checked").length + ")";
  }

  // If the menu is wider than the window, scroll it to the current page.
  var current = document.querySelector("nav [aria-current]");
  if (current) {
    var menu = current.closest("nav");
    menu.scrollLeft += current.getBoundingClientRect().left - menu.clientWidth / 2 + current.offsetWidth / 2;
  }

  var slide = document.getElementById("slide");
  if (slide) {
    slide.addEventListener("input", function () { document.getElementById("slide-now").textContent = slide.value; });
  }

  // Do not refresh a part of the page while one of its fields has the focus, tasks are ticked, or text is selected.
  document.addEventListener("htmx:beforeSwap", function (event) {
    var part = event.detail.target, chosen = window.getSelection();
    if (part.id.indexOf("live") !== 0) return;
    var used = part.contains(document.activeElement) || part.querySelector("input[name=id]:checked") || (String(chosen) && part.contains(chosen.anchorNode));
    if (used) event.detail.shouldSwap = false;
    part.querySelectorAll("details[id]").forEach(function (one) { unfolded[one.id] = one.open; });
  });

  // What was folded or unfolded stays so after a refresh.
  document.addEventListener("htmx:afterSwap", function () {
    Object.keys(unfolded).forEach(function (id) {
      var part = document.getElementById(id);
      if (part) part.open = unfolded[id];
    });
    unfolded = {};
  });

  // --- curves -----------------------------------------------------------------------

  var EVERY_MS = 2000, HISTORY_MS = 15000, EVENTS = ["enqueued", "claimed", "completed", "failed"];
  var charts = document.getElementById("charts");
  if (!charts || !window.uPlot) return;
  var last = null, plots = [], minutes = [];
  var range = document.getElementById("range");
  range.hidden = false;
  range.addEventListener("change", draw);

  function colour(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }

  function clock(at) { return new Date(at * 1000).toISOString().slice(11, 16); }

  function short(value) { return value >= 1e6 ? value / 1e6 + " M" : value >= 1e4 ? value / 1e3 + " k" : String(Number(value.toPrecision(3))); }

  function plot(place, names, data) {
    var axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 } };
    var time = Object.assign({ values: function (plot, splits) { return splits.map(clock); }, incrs: [1, 2, 5, 10, 15, 30, 60, 120, 240, 360].map(function (count) { return count * 60; }) }, axis);
    var series = [{ label: "time (UTC)", value: function (plot, at) { return at === null ? "–" : clock(at); } }].concat(names.map(function (name, index) {
      var ink = colour("--series-" + (index + 1)), dots = { size: 7, fill: ink, show: hours() === 1 };
      return { label: name, stroke: ink, width: 2, dash: [[], [8, 3], [3, 3], [10, 3, 2, 3]][index], points: dots };
    }));
    var options = { width: place.clientWidth || 300, height: 220, series: series, axes: [time, Object.assign({ size: 58, values: function (plot, splits) { return splits.map(short); } }, axis)],
      tzDate: function (at) { return window.uPlot.tzDate(new Date(at * 1000), "Etc/UTC"); },
      scales: { x: { range: function (plot, low, high) { return shown(high); } },
        y: { range: function (plot, low, high) { return [0, (high || 1) * 1.1]; } } }, cursor: { drag: { x: false, y: false } } };
    place.textContent = "";
    return new window.uPlot(options, data, place);
  }

  // The axis begins with the first minute that is known, so that the first curves are not a dot at its end. It ends a
  // little after the last one, whose dot would be cut in two.
  function shown(end) {
    var known = minutes.length ? minutes[0].at_ms / 1000 : end, begin = Math.max(end - hours() * 3600, Math.min(known, end - 300));
    return [begin, end + (end - begin) / 50];
  }

  function hours() { return Number(range.querySelector("input:checked").value); }

  // Every minute of the range has a place, so that a gap is drawn as one.
  function column(of) {
    var known = {}, end = minutes.length ? minutes[minutes.length - 1].at_ms : Math.floor(Date.now() / 60000) * 60000;
    minutes.forEach(function (minute) { known[minute.at_ms] = of(minute); });
    return Array.from({ length: hours() * 60 + 1 }, function (_, index) {
      var value = known[end - (hours() * 60 - index) * 60000];
      return value === undefined ? null : value;
    });
  }

  function draw() {
    var times = Array.from({ length: hours() * 60 + 1 }, function (_, index) {
      var end = minutes.length ? minutes[minutes.length - 1].at_ms : Math.floor(Date.now() / 60000) * 60000;
      return end / 1000 - (hours() * 60 - index) * 60;
    });
    plots.forEach(function (one) { one.destroy(); });
    plots = [
      plot(document.getElementById("chart-rates"), EVENTS, [times].concat(EVENTS.map(function (name) { return column(function (minute) { return minute.events[name]; }); }))),
      plot(document.getElementById("chart-latency"), ["waited", "ran"], [times, column(function (minute) { return minute.wait_p95_s; }), column(function (minute) { return minute.run_p95_s; })]),
    ];
  }

  function remember() {
    if (document.hidden) return;
    fetch(charts.getAttribute("data-history"), { headers: { accept: "application/json" } })
      .then(function (answer) { if (!answer.ok) throw new Error(String(answer.status)); return answer.json(); })
      .then(function (found) { minutes = found.minutes; draw(); })
      .catch(function () { /* The rates below say what is wrong. */ });
  }

  // The 95th percentile of the values that were added between two samples. Values are spread evenly in a bucket.
  function p95(now, before, bounds) {
    var grown = now.map(function (count, index) { return Math.max(0, count - before[index]); });
    var left = 0.95 * grown.reduce(function (sum, count) { return sum + count; }, 0);
    if (left <= 0) return null;
    for (var index = 0; index < bounds.length; index++) {
      if (left <= grown[index]) {
        var low = index ? bounds[index - 1] : 0;
        return low + (bounds[index] - low) * left / grown[index];
      }
      left -= grown[index];
    }
    return bounds[bounds.length - 1];
  }

  function say(selector, text) {
    var cell = document.querySelector(selector);
    if (cell) cell.textContent = text;
  }

  function seconds(value) {
    if (value === null) return "–";
    return value < 1 ? (value * 1000).toPrecision(3) + " ms" : value.toPrecision(3) + " s";
  }

  function take(now) {
    // Sums can be compared only if the same nodes answer, and none was restarted.
    var same = last && String(last.nodes) === String(now.nodes) && EVENTS.every(function (name) { return now.events[name] >= last.events[name]; });
    var apart = last ? (now.at_ms - last.at_ms) / 1000 : 0;
    if (same && apart > 0) {
      var row = EVENTS.map(function (name) { return (now.events[name] - last.events[name]) / apart; });
      var waited = p95(now.waited, last.waited, now.bounds_s), ran = p95(now.ran, last.ran, now.bounds_s);
      EVENTS.forEach(function (name, index) { say("[data-rate=" + name + "]", row[index].toFixed(row[index] < 10 ? 1 : 0)); });
      say("[data-latency=waited]", seconds(waited));
      say("[data-latency=ran]", seconds(ran));
      say("#rates-note", "Sum of all nodes. The peers keep the charts for 24 hours, until they restart." + (now.silent.length ? " Nodes that do not answer are left out: " + now.silent.join(", ") + "." : ""));
    }
    last = now;
  }

  function ask() {
    if (document.hidden) return;
    fetch(charts.getAttribute("data-source"), { headers: { accept: "application/json" } })
      .then(function (answer) { if (!answer.ok) throw new Error(String(answer.status)); return answer.json(); })
      .then(take)
      .catch(function (error) {
        last = null;
        say("#rates-note", error.message === "403" ? "To see rates, you need the role read on every queue." : "The peer does not answer. The page asks again.");
      });
  }

  draw();
  remember();
  ask();
  window.setInterval(remember, HISTORY_MS);
  window.setInterval(ask, EVERY_MS);
  document.addEventListener("onyxq-theme", draw);
  var wide = charts.clientWidth;
  window.addEventListener("resize", function () { if (charts.clientWidth !== wide) { wide = charts.clientWidth; draw(); } });
})();
