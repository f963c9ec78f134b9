// Payloads and results, when somebody opens them: as text, and of a long one only as much as is read.

const PIECE = 32_768;

export function bodies() {
  document.addEventListener("toggle", ({ target }) => {
    if (target.open && target.dataset.body && !target.dataset.loaded) load(target);
  }, true);
}

async function load(details) {
  details.dataset.loaded = "1";
  const place = document.createElement("pre");
  place.className = "wrap told";
  place.dir = "auto";
  place.tabIndex = 0;
  place.textContent = "Loading …";
  details.append(place);
  try {
    const answer = await fetch(details.dataset.body, { cache: "no-store" });
    if (!answer.ok) throw new Error(String(answer.status));
    more(place, visible(await answer.text()), 0);
  } catch {
    place.textContent = "It could not be loaded. Close this and open it again.";
    details.addEventListener("toggle", () => {
      delete details.dataset.loaded;
      place.remove();
    }, { once: true });
  }
}

function more(place, text, from) {
  const to = Math.min(text.length, from + PIECE);
  if (from === 0) place.textContent = "";
  place.append(text.slice(from, to));
  if (to === text.length) return;
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = `Show more (${Math.round((100 * to) / text.length)} % shown)`;
  button.onclick = () => {
    button.remove();
    more(place, text, to);
  };
  place.after(button);
}

// Control characters as the signs that stand for them, those that turn letters around included, as on the server.
export function visible(text) {
  return text.replace(/[\0-\x08\x0b-\x1f\x7f\x85\u2028-\u202e\u2066-\u2069]/g, (c) => {
    if (c > "\u2029") return "\ufffd";
    if (c > "\x7f") return "\u2424";
    return String.fromCharCode(c === "\x7f" ? 0x2421 : 0x2400 + c.charCodeAt(0));
  });
}
