// Reads values out and zooms. Without it the page shows all the same things. Nothing is loaded, kept or sent.
"use strict";
(() => {
  const lanes = document.querySelector(".lanes");
  const values = JSON.parse(document.getElementById("values")?.textContent ?? "null");
  if (!lanes || !values) return;
  const output = document.getElementById("values-shown");
  const lasted = Math.max(Number(lanes.dataset.lasted), 0.001);
  const least = Math.min(lasted, Math.max(values.width * 4, 0.5)); // seconds that are shown at the closest
  let from = 0, span = lasted, at = null, pressed = null;
  document.querySelector(".controls").hidden = false;

  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
  const style = (name, value) => lanes.style.setProperty(name, String(value));
  const format = (value) => value === 0 ? "0" : Math.abs(value) >= 100
    ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3)));

  function shown(at) {
    const i = clamp(Math.floor(at / values.width), 0, values.series[0].values.length - 1);
    const parts = [`${(i * values.width).toFixed(values.width < 1 ? 2 : 0)} s`];
    for (const series of values.series) {
      const value = series.values[i];
      if (value !== null && value !== undefined) parts.push(series.says.replace("{}", format(value)));
    }
    const margin = values.width / 2; // a fault that is over at once has to be found, too
    const faults = values.faults.filter(([, began, ended]) => began - margin <= at && at <= ended + margin);
    if (faults.length) parts.push(`faults: ${faults.map(([label]) => label).join(", ")}`);
    for (const [log, leaders] of values.leaders) {
      const led = leaders.find(([, began, ended]) => began <= at && at < ended);
      parts.push(led ? `${log} led by ${led[0]}` : `nobody leads ${log}`);
    }
    return parts.join(" · ");
  }

  function point(second) {
    at = second === null ? null : clamp(second, 0, lasted);
    lanes.classList.toggle("pointed", at !== null);
    if (at === null) return;
    style("--at", at);
    output.textContent = shown(at);
  }

  function ticks() {
    const steps = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1200, 3600];
    const room = Math.max(3, Math.floor(place().width / 90));
    const step = steps.find((each) => span / each <= room) ?? 3600;
    for (const axis of lanes.querySelectorAll(".axis")) {
      axis.replaceChildren();
      for (let i = Math.ceil(from / step - 1e-9); i * step <= from + span + 1e-9; i++) {
        const tick = axis.appendChild(document.createElement("span"));
        tick.className = "tick";
        tick.style.setProperty("--a", String(i * step));
        tick.appendChild(document.createElement("b")).textContent = `${Number((i * step).toFixed(2)).toLocaleString("en")} s`;
      }
    }
  }

  function show(first, wide) {
    span = clamp(wide, least, lasted);
    from = clamp(first, 0, lasted - span);
    style("--from", from);
    style("--span", span);
    for (const shapes of lanes.querySelectorAll(".shapes")) shapes.setAttribute("viewBox", `${from} 0 ${span} 100`);
    ticks();
  }

  function zoom(factor) {
    const middle = at ?? from + span / 2;
    show(middle - (middle - from) * factor, span * factor);
  }

  const place = () => lanes.querySelector(".plot").getBoundingClientRect();
  const second = (event) => from + clamp((event.clientX - place().left) / place().width, 0, 1) * span;

  lanes.addEventListener("pointermove", (event) => {
    point(second(event));
    if (pressed === null || Math.abs(event.clientX - pressed.x) < 4) return;
    lanes.classList.add("dragged");
    style("--at", Math.min(pressed.at, at));
    style("--wide", Math.abs(at - pressed.at));
  });
  lanes.addEventListener("pointerleave", () => { if (pressed === null) point(null); });
  lanes.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || event.pointerType === "touch" || event.target.closest("summary")) return;
    pressed = { x: event.clientX, at: second(event) };
  });
  addEventListener("pointerup", (event) => {
    const dragged = lanes.classList.contains("dragged");
    lanes.classList.remove("dragged");
    const start = pressed;
    pressed = null;
    if (!dragged || start === null) return;
    const end = second(event);
    show(Math.min(start.at, end), Math.abs(end - start.at));
    point(end);
  });
  lanes.addEventListener("dragstart", (event) => event.preventDefault());
  lanes.addEventListener("selectstart", (event) => { if (pressed !== null) event.preventDefault(); });
  lanes.addEventListener("dblclick", () => show(0, lasted));
  lanes.addEventListener("keydown", (event) => {
    const step = Math.max(values.width, span / 200) * (event.shiftKey ? 10 : 1);
    const keys = {
      ArrowLeft: () => point((at ?? from + span / 2) - step),
      ArrowRight: () => point((at ?? from + span / 2) + step),
      Home: () => point(from),
      End: () => point(from + span),
      "+": () => zoom(0.5),
      "=": () => zoom(0.5),
      "-": () => zoom(2),
      Escape: () => { show(0, lasted); point(null); },
    };
    const act = event.target.closest("summary") || event.ctrlKey || event.metaKey ? undefined : keys[event.key];
    if (!act) return;
    event.preventDefault();
    act();
    if (at !== null && (at < from || at > from + span)) show(at - span / 2, span);
  });
  const acts = { in: () => zoom(0.5), out: () => zoom(2), all: () => show(0, lasted) };
  for (const button of document.querySelectorAll("[data-zoom]")) button.addEventListener("click", acts[button.dataset.zoom]);
  for (const button of document.querySelectorAll(".show")) {
    button.addEventListener("click", () => {
      const [began, until] = [Number(button.dataset.from), Number(button.dataset.until)];
      const wide = Math.max((until - began) * 2, 5);
      show((began + until) / 2 - wide / 2, wide);
      point(began);
      document.getElementById("time").scrollIntoView();
      lanes.focus({ preventScroll: true });
    });
  }
  addEventListener("resize", ticks);
  ticks();
})();
